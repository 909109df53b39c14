"""Who shares a ring, who gets what, who leaves whom: plain values in, decisions out; no clock, no socket."""
