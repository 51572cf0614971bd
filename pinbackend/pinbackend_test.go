package pinbackend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/pinbackend"
)

// recorder is a device that only registers, and remembers what it was asked.
// Every other method is missing and would panic.
type recorder struct {
	hca.Device
	attr    hca.Attr
	fail    error
	asked   []hca.Range
	access  []hca.Access
	dropped []*hca.MR
}

func (d *recorder) Attr() hca.Attr { return d.attr }

func (d *recorder) Register(r hca.Range, a hca.Access) (*hca.MR, error) {
	d.asked, d.access = append(d.asked, r), append(d.access, a)
	if d.fail != nil {
		return nil, d.fail
	}
	return &hca.MR{Range: r, Access: a, LKey: uint32(len(d.asked)), RKey: uint32(len(d.asked))}, nil
}

func (d *recorder) Deregister(mr *hca.MR) error {
	d.dropped = append(d.dropped, mr)
	return d.fail
}

func TestInfoComesFromTheDevice(t *testing.T) {
	b := pinbackend.New(&recorder{attr: hca.Attr{Name: "dev7", PageSize: 16384, MaxMR: 10, MaxMRSize: 1 << 30}})
	info := b.Info()
	require.Equal(t, "pin on dev7", info.Name)
	require.Equal(t, uint64(16384), info.PageSize)
	require.Equal(t, 10, info.MaxRegions)
	require.Equal(t, uint64(1<<30), info.MaxLen)
	require.False(t, info.Follows, "pinned registrations must not be believed to follow the address space")
}

func TestRegistersWhatIsAskedForAndNothingElse(t *testing.T) {
	dev := &recorder{}
	b := pinbackend.New(dev)
	r := hca.Range{Addr: 0x1003, Len: 77}
	mr, err := b.Register(r, hca.LocalWrite|hca.RemoteRead)
	require.NoError(t, err)
	require.Equal(t, []hca.Range{r}, dev.asked)
	require.Equal(t, []hca.Access{hca.LocalWrite | hca.RemoteRead}, dev.access)
	require.NoError(t, b.Deregister(mr))
	require.Equal(t, []*hca.MR{mr}, dev.dropped)
}

func TestErrorsPassThrough(t *testing.T) {
	for _, want := range []error{hca.ErrNoMemory, hca.ErrNoKeys, hca.ErrBadAddress, hca.ErrClosed} {
		dev := &recorder{fail: &hca.OpError{Op: "register", Err: want}}
		b := pinbackend.New(dev)
		_, err := b.Register(hca.Range{Addr: 1, Len: 1}, hca.LocalRead)
		require.ErrorIs(t, err, want)
		require.Same(t, dev.fail, err, "the device's own words reach the caller")
		require.ErrorIs(t, b.Deregister(&hca.MR{}), want)
	}
}

func TestOnDemandIsRefusedBeforeTheDeviceHearsOfIt(t *testing.T) {
	dev := &recorder{}
	_, err := pinbackend.New(dev).Register(hca.Range{Addr: 1, Len: 1}, hca.OnDemand)
	require.ErrorIs(t, err, hca.ErrInvalid)
	require.ErrorContains(t, err, "odpbackend")
	require.Empty(t, dev.asked)
}
