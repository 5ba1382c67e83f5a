"""`python -m cohive.monitor`: the program cohive-monitor."""

from ._programs import become

if __name__ == "__main__":
    become("cohive-monitor")
