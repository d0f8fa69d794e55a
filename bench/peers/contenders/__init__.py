"""One file for each kind of contender; protocol.py says what it holds."""
