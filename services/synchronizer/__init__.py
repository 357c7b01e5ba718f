"""The synchronizer service: experiments, weight versions, live members and what they wait for."""
