"""Write vectors in fewer bytes: signs, the largest scalars, integers with a scale, and feedback of what they lose."""
