"""What single papers need beyond the grid: runs taken apart, clustered again, looked at closely."""
