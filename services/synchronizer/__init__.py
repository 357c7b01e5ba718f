"""The synchronizer service: experiments, weight versions, live members and their waits."""
