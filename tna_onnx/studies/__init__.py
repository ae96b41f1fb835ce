"""What a model does under each experiment of the paper: one study a file.

A study is a pure function from features and settings to a frozen `Study`. Files, pages and pictures are made elsewhere.
"""
