"""The sharing of rings among consumers: plain values in, decisions out; no clock, no socket."""
