"""The synchronizer service: experiments, weight versions, who is alive and who waits for whom."""
