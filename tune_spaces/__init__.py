"""Search spaces, installed as `raysum.spaces`."""
