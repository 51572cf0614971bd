package msg

// SkipOne makes the next message look as if one before it was lost.
func (e *Endpoint) SkipOne() { e.seq++ }

// SkipBarrier makes the next barrier look as if one before it was lost.
func (e *Endpoint) SkipBarrier() { e.barriers++ }
