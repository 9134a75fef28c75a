"""Cost models compared with what is measured: experiments, their tasks in processes of their own, and findings."""
