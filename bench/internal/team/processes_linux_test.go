package team

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/rig"
	"example.com/holdfast/internal/leaktest"
)

// actor is the variable that makes the test binary another process: one of
// actors.
const actor = "HOLDFAST_TEST_ACTOR"

func TestMain(m *testing.M) {
	if name := os.Getenv(actor); name != "" {
		if err := actors[name](); err != nil {
			fmt.Fprintln(os.Stderr, "actor:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// actors are ranks 1 that misbehave in some way, and a rank 0. All of them end
// by themselves after a while if nothing ends them.
var actors = map[string]func() error{
	"fails at once": func() error { os.Exit(7); return nil },
	"never joins":   func() error { return hang() },
	"has a wrong ticket": func() error {
		t, err := exchange.ParseTicket(os.Getenv(Variable))
		if err != nil {
			return err
		}
		t.Secret = "guessed"
		if _, err = exchange.Join(context.Background(), t); err == nil {
			return hang()
		}
		return err
	},
	"has no device": func() error {
		return Rank1(os.Getenv(Variable), func() (*rig.Rig, error) { return nil, errors.New("no such adapter") })
	},
	"serves": func() error { return Rank1(os.Getenv(Variable), alone(1)) },
	"serves, and does not die with its parent's thread": func() error {
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
			return err
		}
		return Rank1(os.Getenv(Variable), alone(1))
	},
	"is deaf": func() error { // it is there, and reads nothing any more
		t, err := exchange.ParseTicket(os.Getenv(Variable))
		if err != nil {
			return err
		}
		x, err := exchange.Join(context.Background(), t)
		if err != nil {
			return err
		}
		if err := put(context.Background(), x, keyHere, answer{}); err != nil {
			return err
		}
		return hang()
	},
	"rank 0": func() error { // starts the rank 1 of its argument and says its number
		team, err := Start(act(os.Args[1]), alone(0))
		if err != nil {
			return err
		}
		fmt.Println(team.child.command.Process.Pid)
		return hang()
	},
}

func hang() error {
	time.Sleep(limit)
	return errors.New("nobody ended it")
}

// alone opens what one rank has.
func alone(rank int) func() (*rig.Rig, error) {
	return func() (*rig.Rig, error) { return rig.Open(rig.Config{Device: "live", Ranks: []int{rank}}) }
}

// act is a process that is an actor.
func act(name string, args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Env = append(os.Environ(), actor+"="+name)
	return c
}

// A rank 1 that does not come is an error of the start that says why, and
// nothing of it is left.
func TestStartFails(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit time.Duration
		want  []string
	}{
		{"fails at once", limit, []string{"rank 1 is gone: its process ended", "exit status 7"}},
		{"has no device", limit, []string{"in rank 1's process: no such adapter"}},
		{"never joins", 50 * time.Millisecond, []string{`"here" of rank 1: not within 50ms`}},
		{"has a wrong ticket", limit, []string{"rank 1 is gone: its process ended", "turned away: 127.0.0.1:", "the secret is not that of this job"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			command := act(c.name)
			_, err := start(command, alone(0), c.limit)
			for _, want := range c.want {
				require.ErrorContains(t, err, want)
			}
			require.NotNil(t, command.ProcessState, "it was waited for")
		})
	}
	_, err := Start(exec.Command("/nonexistent/bench"), alone(0))
	require.ErrorContains(t, err, "rank 1 cannot be started: ")
	broken := errors.New("no device of mine")
	command := act("serves")
	_, err = Start(command, func() (*rig.Rig, error) { return nil, broken })
	require.ErrorIs(t, err, broken)
	require.NotNil(t, command.ProcessState)
}

// What cannot be done without the other process's device: it opens one, says
// so, makes its part of a pair and lets it go, and leaves in order.
func TestProcesses(t *testing.T) {
	command := act("serves")
	var said bytes.Buffer
	command.Stderr = &said
	team, err := Start(command, alone(0))
	require.NoError(t, err)
	require.Contains(t, team.Notes(), [2]string{"Ranks", "each in a process of its own"})
	require.NoError(t, team.Lacks("pin"))
	// The live device of another process is not to be reached: that is told.
	_, err = team.Pair("pin")
	require.ErrorContains(t, err, "in rank 1's process: ")
	require.ErrorContains(t, err, "connect")
	require.NoError(t, team.Close())
	require.Empty(t, said.String())
}

// Rank 1 is killed while rank 0 does something else: what rank 0 asks next
// fails at once, and the end says how it ended.
func TestRank1IsKilled(t *testing.T) {
	team, err := Start(act("serves"), alone(0))
	require.NoError(t, err)
	require.NoError(t, team.child.command.Process.Kill())
	<-team.child.ended
	_, err = team.Pair("pin")
	var lost *exchange.LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, 1, lost.Rank)
	err = team.Close()
	require.ErrorContains(t, err, "rank 1: its process")
	require.ErrorContains(t, err, "signal: killed")
}

// A rank 1 that does not leave is killed.
func TestRank1DoesNotLeave(t *testing.T) {
	team, err := Start(act("is deaf"), alone(0))
	require.NoError(t, err)
	team.patience = 50 * time.Millisecond
	require.ErrorContains(t, team.Close(), "did not end within 50ms and was killed")
	require.Equal(t, "signal: killed", team.child.command.ProcessState.String())
}

// Rank 1 ends when rank 0's process is killed: by the kernel, were it deaf, and
// by the end of the connection alone.
func TestRank1DiesWithRank0(t *testing.T) {
	for _, name := range []string{"serves", "is deaf", "serves, and does not die with its parent's thread"} {
		t.Run(name, func(t *testing.T) {
			parent := act("rank 0", name)
			out, err := parent.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, parent.Start())
			var pid int
			_, err = fmt.Fscan(out, &pid)
			require.NoError(t, err)
			child, err := unix.PidfdOpen(pid, 0)
			require.NoError(t, err)
			defer unix.Close(child)
			require.NoError(t, parent.Process.Kill())
			require.Error(t, parent.Wait())
			poll := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}} // readable: it has ended
			for {
				n, err := unix.Poll(poll, int((limit / 2).Milliseconds()))
				if err == unix.EINTR {
					continue
				}
				require.NoError(t, err)
				require.Equal(t, 1, n, "process %d lives on", pid)
				break
			}
		})
	}
}
