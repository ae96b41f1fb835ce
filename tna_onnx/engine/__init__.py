"""Where sums over samples are computed: `protocol` says what an engine is, `local` is the one of this machine."""
