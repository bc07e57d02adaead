"""`celeriac demo`: the main job on a real stack, with everything killed that can be killed."""
