"""Where jobs live, and what runs the flows that ask for them."""
