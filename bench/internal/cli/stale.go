package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/stale"
	"example.com/holdfast/hca"
)

// staleLimit bounds a loop of stale that hangs.
const staleLimit = 2 * time.Minute

// runStale is bench stale.
func runStale(o *options, g *rig.Rig, out *output, prog progress) error {
	fmt.Fprintf(out, "What a kept registration does when its memory goes away and the address comes back.\n"+
		"off: a cache that keeps every registration and hears of nothing.  on: regcache with a monitor.\n\n")
	for _, l := range g.Lines() {
		fmt.Fprintf(out, "%-13s %s\n", l[0]+":", l[1])
	}
	v := verdict{canShow: g.Devices[0].Attr().StalePins}
	if !v.canShow {
		fmt.Fprintf(out, "\nThis form of the device has no stale pages: what goes wrong with interception off cannot be\n"+
			"shown here, only that nothing does with it on.\n")
	}
	fmt.Fprintf(out, "\n%-16s%-14s%11s%12s%12s%16s\n", "memory", "interception", "transfers", "registered", "from cache", "silently wrong")
	for _, c := range stale.Cases() {
		rounds := c.Rounds
		if o.iterSet {
			rounds = o.iter.MsgsPerSample
		}
		for _, on := range []bool{false, true} {
			word := map[bool]string{false: "off", true: "on"}[on]
			prog.show("%s, interception %s", c.Name, word)
			got, err := stale.Outcome{}, errNoStalePages
			if on || v.canShow {
				ctx, cancel := context.WithTimeoutCause(context.Background(), staleLimit, fmt.Errorf("not done after %v", staleLimit))
				got, err = stale.Run(ctx, g, c, rounds, on)
				cancel()
			}
			prog.clear()
			switch {
			case err == nil:
				fmt.Fprintf(out, "%-16s%-14s%11d%12d%12d%16d\n", c.Name, word, got.Transfers, got.Made, got.Hits, got.Wrong)
				v.add(on, got)
			case errors.Is(err, errNoStalePages), errors.Is(err, hca.ErrNoMemory):
				fmt.Fprintf(out, "%-16s%-14s%11s%12s%12s%16s\n", c.Name, word, "-", "-", "-", "cannot be shown")
				if !errors.Is(err, errNoStalePages) {
					v.notRun = append(v.notRun, err)
				}
			default:
				return err
			}
		}
	}
	fmt.Fprintln(out)
	for _, c := range stale.Cases() {
		fmt.Fprintf(out, "%-16s%s\n", c.Name, c.Text)
	}
	fmt.Fprintln(out)
	text, err := v.conclude()
	fmt.Fprint(out, text)
	return err
}

// errNoStalePages is why a loop without interception is not run.
var errNoStalePages = errors.New("the device has no stale pages")

// verdict is what the loops showed together.
type verdict struct {
	canShow  bool // the device has stale pages
	offWrong int
	onWrong  int
	right    int // loops without interception in which nothing went wrong
	unkept   int // loops with it in which the cache never answered from what it kept
	done     int // loops with interception that ran
	notRun   []error
}

func (v *verdict) add(on bool, got stale.Outcome) {
	if !on {
		v.offWrong += got.Wrong
		if got.Wrong == 0 {
			v.right++
		}
		return
	}
	v.done++
	v.onWrong += got.Wrong
	if got.Hits == 0 {
		v.unkept++
	}
}

// conclude says what follows, and the error that the command ends with.
func (v *verdict) conclude() (text string, err error) {
	for _, e := range v.notRun {
		text += fmt.Sprintf("Not shown: %v\n", e)
	}
	switch {
	case v.onWrong > 0:
		return text, fmt.Errorf("%d transfers were wrong with interception on: that is a fault of this program", v.onWrong)
	case v.unkept > 0:
		return text, fmt.Errorf("in %d loops with interception on the cache kept nothing, so that it is no wonder that nothing was wrong", v.unkept)
	case v.right > 0:
		return text, fmt.Errorf("%d loops went right with interception off: the problem did not show, so that nothing is proved; try more rounds (-iter)", v.right)
	case v.done == 0:
		return text, nil
	case v.canShow:
		return text + fmt.Sprintf("With interception off %d transfers were silently wrong, with it on none.\n", v.offWrong), nil
	}
	return text + "With interception on no transfer was wrong.\n", nil
}
