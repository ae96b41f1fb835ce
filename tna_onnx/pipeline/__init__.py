"""What happens inside `calibrate`, in order."""
