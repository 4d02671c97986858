"""Measuring a model on held-out problems: draw, judge, estimate with intervals. Never trains anything."""
