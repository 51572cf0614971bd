package team

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"example.com/holdfast/bench/internal/exchange"
	"example.com/holdfast/bench/internal/rig"
)

// Variable is the environment variable by which rank 1's process knows that it
// is one: it holds an exchange.Ticket. It is for who starts ranks, not for
// people.
const Variable = "HOLDFAST_RANK"

// Processes is a team of rank 0 in this process and rank 1 in a child of it.
type Processes struct {
	*driver
	hub      *exchange.Hub
	client   *exchange.Client
	child    *child
	patience time.Duration // for rank 1 to leave: partingTime
}

var _ Team = (*Processes)(nil)

// Start starts rank 1 and opens rank 0's device, by open. command is how to
// start the process of rank 1, with nothing of it started or connected yet:
// it has to Join by the ticket in Variable, which Start adds to its environment, and to Serve.
// Its standard output goes nowhere, so that only rank 0 prints. Errors:
// those of starting it, of open, in either process; that rank 1 ended,
// or did not come.
func Start(command *exec.Cmd, open func() (*rig.Rig, error)) (*Processes, error) {
	return start(command, open, startTime)
}

func start(command *exec.Cmd, open func() (*rig.Rig, error), limit time.Duration) (t *Processes, err error) {
	t = &Processes{patience: partingTime}
	defer func() {
		if err != nil {
			if lost := (*exchange.LostError)(nil); !errors.As(err, &lost) {
				t.patience = 0 // it waits for orders that do not come
			}
			err = errors.Join(err, t.Close())
			t = nil
		}
	}()
	if t.hub, err = exchange.Listen(2); err != nil {
		return t, err
	}
	command.Env = append(command.Environ(), Variable+"="+t.hub.Ticket(1).String())
	if t.child, err = startChild(command, func() { t.hub.Lose(1, "its process ended") }); err != nil {
		return t, err
	}
	g, err := open()
	if err != nil {
		return t, err
	}
	t.driver = &driver{rig: g}
	return t, within(limit, func(ctx context.Context) error {
		if t.client, err = exchange.Join(ctx, t.hub.Ticket(0)); err != nil {
			return err
		}
		d, err := meet(ctx, t.client, g)
		if err == nil {
			t.driver = d
			return nil
		}
		if refused := t.hub.Refused(); len(refused) > 0 {
			err = fmt.Errorf("%w (turned away: %s)", err, strings.Join(refused, "; "))
		}
		return err
	})
}

// Notes say what runs.
func (t *Processes) Notes() [][2]string { return t.notes }

// Lacks is that of rank 0's rig: rank 1's is the same adapter.
func (t *Processes) Lacks(backend string) error { return t.rig.Lacks(backend) }

// Pair makes a pair.
func (t *Processes) Pair(backend string) (Pair, error) {
	p, err := t.pair(backend)
	if err != nil {
		return nil, err // not a nil *processPair in a Pair
	}
	return p, nil
}

// Close has rank 1 leave, and kills it if it does not within half a minute.
// How its process ended is an error unless that was in order.
func (t *Processes) Close() error {
	var errs []error
	if t.driver != nil && t.driver.x != nil {
		errs = append(errs, t.leave())
	}
	if t.child != nil {
		errs = append(errs, t.child.end(t.patience))
	}
	if t.client != nil {
		t.client.Close()
	}
	if t.driver != nil {
		errs = append(errs, t.rig.Close())
	}
	if t.hub != nil {
		errs = append(errs, t.hub.Close())
	}
	return errors.Join(errs...)
}

// child is rank 1's process.
type child struct {
	command *exec.Cmd
	ended   chan struct{} // closed when it has ended and was waited for
	err     error         // how; after ended
}

// startChild starts a process that dies with this one. ended is called when it
// has ended.
func startChild(command *exec.Cmd, ended func()) (*child, error) {
	c := &child{command: command, ended: make(chan struct{})}
	dieWithParent(command)
	command.WaitDelay = time.Second // for its standard error, if something else holds that
	started := make(chan error, 1)
	go func() {
		// To the kernel the parent is this thread, not this process: it has to
		// stay until the child has ended, and belong to nobody else.
		runtime.LockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		c.err = command.Wait()
		ended()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("rank 1 cannot be started: %w", err)
	}
	return c, nil
}

// how is how it ended, in words.
func (c *child) how() string {
	return fmt.Sprintf("its process %d ended: %v", c.command.Process.Pid, c.command.ProcessState)
}

// end waits for the process to end, and kills it when patience is over. It is
// an error if it did not end in order, but where there was no patience.
func (c *child) end(patience time.Duration) error {
	killed := false
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-c.ended:
	case <-timer.C:
		select {
		case <-c.ended:
		default:
			killed = true
			_ = c.command.Process.Kill() // fails only if it has ended meanwhile
			<-c.ended
		}
	}
	switch {
	case killed && patience == 0:
		return nil
	case killed:
		return fmt.Errorf("rank 1: its process %d did not end within %v and was killed", c.command.Process.Pid, patience)
	case c.err != nil:
		return fmt.Errorf("rank 1: %s", c.how())
	}
	return nil
}

// Rank1 is the whole of rank 1's process: it joins by the ticket of Variable
// and serves. Errors as Serve.
func Rank1(ticket string, open func() (*rig.Rig, error)) error {
	t, err := exchange.ParseTicket(ticket)
	if err != nil {
		return fmt.Errorf("%s: %w", Variable, err)
	}
	x, err := exchange.Join(context.Background(), t)
	if err != nil {
		return err
	}
	defer x.Close()
	return Serve(x, open)
}
