"""The experiments of the paper on a user's model: one study a file.

A study is a pure function from features and settings to a frozen `Study`; other packages write the files and pages.
"""
