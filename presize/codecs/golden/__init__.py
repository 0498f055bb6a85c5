"""Small images embedded in the program, and what the codecs make of them."""
