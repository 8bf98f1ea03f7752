"""Methods that learn, or fix, one weight per client while every client is evaluated at the same model w."""
