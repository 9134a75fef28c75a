"""Cost models compared with what is measured: experiments, their trials in processes of their own, and findings."""
