"""`python -m cohive.bootstrap`: the program cohive-bootstrap."""

from ._programs import become

if __name__ == "__main__":
    become("cohive-bootstrap")
