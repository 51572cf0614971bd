package hca

// Reregisterer is a Device that can change a registration in place, as
// ibv_rereg_mr(3), where its Attr().Rereg says so. What keeps registrations
// can do without it: to register anew and deregister the old is always
// possible.
type Reregisterer interface {
	Device

	// Reregister changes the memory of mr to r, what it allows to a, or both:
	// what is equal stays as it is. The answer stands for the registration
	// from then on, mr for none; the keys may be others. No transfer through
	// the old keys may be under way or start meanwhile.
	//
	// Errors. The registration is as it was, and mr stands for it, after:
	// ErrInvalid (not a registration of this device or no longer one, an
	// access that makes no sense, pinned made on demand or the reverse),
	// ErrTooLong, ErrNotSupported (see Attr), ErrClosed, and ErrAccess (a
	// registration for reading only is to become one for writing, and the
	// device cannot change its memory: the pages were looked up for reading).
	// After any other error, the text of which says so, the registration may
	// only be deregistered: ErrNoMemory, ErrNoKeys, ErrBadAddress.
	Reregister(mr *MR, r Range, a Access) (*MR, error)
}

// ReregCaps says what Reregister can change.
type ReregCaps struct {
	Access bool // what a registration allows
	Range  bool // the memory it stands for
}
