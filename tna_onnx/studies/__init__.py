"""The experiments of the paper on a user's model: functions from features and settings to a frozen `Study`.

Other packages write the files and pages.
"""
