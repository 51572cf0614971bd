package odpbackend_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/hca"
	"example.com/holdfast/odpbackend"
)

func TestModeByCapability(t *testing.T) {
	for _, c := range []struct {
		name string
		dev  *recorder
		cfg  odpbackend.Config
		mode odpbackend.Mode
		info string
	}{
		{"implicit", implicit(), odpbackend.Config{}, odpbackend.ModeWhole, "odp (whole address space) on full0"},
		{"explicit", explicit(1 << 40), odpbackend.Config{}, odpbackend.ModeWindows, "odp (windows of 1 GiB) on rxe0"},
		{"explicit, no limit said", explicit(0), odpbackend.Config{}, odpbackend.ModeWindows, "odp (windows of 1 GiB) on rxe0"},
		{"explicit, short registrations", explicit(100 << 20), odpbackend.Config{}, odpbackend.ModeWindows, "odp (windows of 64 MiB) on rxe0"},
		{"explicit, too short for windows", explicit(1<<20 - 1), odpbackend.Config{}, odpbackend.ModeRange, "odp (range by range) on rxe0"},
		{"windows forced", implicit(), odpbackend.Config{Mode: odpbackend.ModeWindows, Window: 2 << 20}, odpbackend.ModeWindows, "odp (windows of 2 MiB) on full0"},
		{"range forced", implicit(), odpbackend.Config{Mode: odpbackend.ModeRange}, odpbackend.ModeRange, "odp (range by range) on full0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := odpbackend.New(c.dev, c.cfg)
			require.NoError(t, err)
			require.Equal(t, c.mode, b.Mode())
			require.Equal(t, c.info, b.Info().Name)
			require.True(t, b.Info().Follows)
			require.Empty(t, c.dev.ranges(), "New leaves no registration behind")
			require.Equal(t, 1, c.dev.made, "New tried what it settled on")
		})
	}
}

func TestADeviceThatRefusesIsBelievedOverItsAttributes(t *testing.T) {
	dev := implicit()
	dev.refuse = func(r hca.Range, a hca.Access) error {
		if r == hca.Whole {
			return &hca.OpError{Op: "register", Device: "full0", Detail: "firmware says no", Err: hca.ErrNotSupported}
		}
		return nil
	}
	b, err := odpbackend.New(dev, odpbackend.Config{})
	require.NoError(t, err)
	require.Equal(t, odpbackend.ModeWindows, b.Mode())
	require.Contains(t, b.String(), "windows of 1 GiB")
	require.Contains(t, b.String(), "no whole address space")
	require.Contains(t, b.String(), "firmware says no")

	_, err = odpbackend.New(dev, odpbackend.Config{Mode: odpbackend.ModeWhole})
	require.ErrorIs(t, err, hca.ErrNotSupported, "a mode that is forced is not exchanged for another")
}

func TestNewRefuses(t *testing.T) {
	noODP := &recorder{attr: hca.Attr{Name: "old0"}}
	noRead := explicit(1 << 40)
	noRead.attr.ODP.RC &^= hca.ODPRead
	onlyWhole := implicit()
	onlyWhole.attr.ODP.Support = false
	closed := implicit()
	closed.refuse = func(hca.Range, hca.Access) error { return hca.ErrClosed }
	broken := implicit()
	broken.refuse = func(hca.Range, hca.Access) error { return hca.ErrNoMemory }

	for _, c := range []struct {
		name string
		dev  *recorder
		cfg  odpbackend.Config
		is   error
		says string
	}{
		{"no on-demand paging", noODP, odpbackend.Config{}, hca.ErrNotSupported, "no on-demand paging"},
		{"an operation missing", noRead, odpbackend.Config{}, hca.ErrNotSupported, "reliable connections"},
		{"whole forced without implicit", explicit(1 << 40), odpbackend.Config{Mode: odpbackend.ModeWhole}, hca.ErrNotSupported, "implicit"},
		{"windows forced, too short", explicit(1 << 16), odpbackend.Config{Mode: odpbackend.ModeWindows}, hca.ErrNotSupported, "too short"},
		{"range forced with implicit only", onlyWhole, odpbackend.Config{Mode: odpbackend.ModeRange}, hca.ErrNotSupported, "only the whole"},
		{"closed", closed, odpbackend.Config{}, hca.ErrClosed, "closed"},
		{"nothing works", broken, odpbackend.Config{}, hca.ErrNotSupported, "no range by range"},
		{"mode out of range", implicit(), odpbackend.Config{Mode: 9}, hca.ErrInvalid, "Config.Mode"},
		{"window no power of two", implicit(), odpbackend.Config{Window: 3 << 20}, hca.ErrInvalid, "Config.Window"},
		{"window too small", implicit(), odpbackend.Config{Window: 4096}, hca.ErrInvalid, "Config.Window"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := odpbackend.New(c.dev, c.cfg)
			require.ErrorIs(t, err, c.is)
			require.ErrorContains(t, err, c.says)
			require.Empty(t, c.dev.ranges())
		})
	}
}

func TestAccessOfSharedRegistrationsIsWhatTheDeviceCan(t *testing.T) {
	for _, c := range []struct {
		rc   hca.ODPOps
		want hca.Access
	}{
		{allOps | hca.ODPAtomic, hca.LocalWrite | hca.RemoteWrite | hca.RemoteRead | hca.RemoteAtomic},
		{allOps, hca.LocalWrite | hca.RemoteWrite | hca.RemoteRead},
	} {
		dev := implicit()
		dev.attr.ODP.RC = c.rc
		b, err := odpbackend.New(dev, odpbackend.Config{})
		require.NoError(t, err)
		mr, err := b.Register(hca.Range{Addr: 4096, Len: 1}, hca.LocalRead)
		require.NoError(t, err)
		require.Equal(t, c.want|hca.OnDemand, mr.Access)
		require.NoError(t, b.Deregister(mr))
	}
}
