package cli

import (
	"context"
	"fmt"
	"time"

	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/bench/internal/stale"
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
	canShow := g.Devices[0].Attr().StalePins
	if !canShow {
		fmt.Fprintf(out, "\nThis form of the device has no stale pages: what goes wrong with interception off cannot be\n"+
			"shown here, only that nothing does with it on.\n")
	}
	fmt.Fprintf(out, "\n%-16s%-14s%12s%16s\n", "memory", "interception", "transfers", "silently wrong")
	var offWrong, onWrong, blank int
	for _, c := range stale.Cases() {
		rounds := c.Rounds
		if o.iterSet {
			rounds = o.iter.MsgsPerSample
		}
		for _, on := range []bool{false, true} {
			word := map[bool]string{false: "off", true: "on"}[on]
			if !on && !canShow {
				fmt.Fprintf(out, "%-16s%-14s%12s%16s\n", c.Name, word, "-", "cannot be shown")
				continue
			}
			prog.show("%s, interception %s", c.Name, word)
			ctx, cancel := context.WithTimeoutCause(context.Background(), staleLimit, fmt.Errorf("not done after %v", staleLimit))
			got, err := stale.Run(ctx, g, c, rounds, on)
			cancel()
			prog.clear()
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "%-16s%-14s%12d%16d\n", c.Name, word, got.Transfers, got.Wrong)
			switch {
			case on:
				onWrong += got.Wrong
			case got.Wrong == 0:
				blank++
			default:
				offWrong += got.Wrong
			}
		}
	}
	fmt.Fprintln(out)
	for _, c := range stale.Cases() {
		fmt.Fprintf(out, "%-16s%s\n", c.Name, c.Text)
	}
	fmt.Fprintln(out)
	switch {
	case onWrong > 0:
		return fmt.Errorf("%d transfers were wrong with interception on: that is a fault of this program", onWrong)
	case !canShow:
		fmt.Fprintf(out, "With interception on no transfer was wrong.\n")
	case blank > 0:
		return fmt.Errorf("%d of the loops went right with interception off: the problem did not show, so that nothing is proved; try more rounds (-iter)", blank)
	default:
		fmt.Fprintf(out, "With interception off %d transfers were silently wrong, with it on none.\n", offWrong)
	}
	return nil
}
