package exchange

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Client is a rank's connection to the hub.
type Client struct {
	ticket Ticket
	conn   net.Conn
	done   chan struct{} // closed when the reader has ended

	sending sync.Mutex // a frame at a time

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan reply // by request
	gone    error                 // why nothing comes any more
}

var _ Exchange = (*Client)(nil)

// Join connects a rank to its hub. Errors: ErrRefused with the hub's reason
// (the rank is here already, a wrong secret, another version of the protocol, not a hub at
// all); those of the connection; the context's cause. Without a deadline in
// ctx it waits ten seconds.
func Join(ctx context.Context, t Ticket) (*Client, error) {
	fail := func(err error) (*Client, error) {
		return nil, fmt.Errorf("rank %d cannot join the exchange at %s: %w", t.Rank, t.Addr, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer for %v", patience))
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", t.Addr)
	if err != nil {
		return fail(err)
	}
	// The context bounds the greeting too, whether it ends by time or not.
	unhook := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = greet(conn, t)
	if !unhook() {
		err = context.Cause(ctx)
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return fail(err)
	}
	c := &Client{ticket: t, conn: conn, done: make(chan struct{}), waiting: make(map[uint64]chan reply)}
	go c.read()
	return c, nil
}

// greet says hello and shows the ticket.
func greet(conn net.Conn, t Ticket) error {
	if err := hello(conn); err != nil {
		return err
	}
	if err := heardHello(conn); err != nil {
		var n net.Error
		if errors.As(err, &n) {
			return err
		}
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if err := send(conn, t, patience); err != nil {
		return err
	}
	var r reply
	if err := receive(conn, &r, patience); err != nil {
		return err
	}
	if r.Refused != "" {
		return fmt.Errorf("%w: %s", ErrRefused, r.Refused)
	}
	return nil
}

// Rank is the number on the ticket.
func (c *Client) Rank() int { return c.ticket.Rank }

// Size is the number of ranks on the ticket.
func (c *Client) Size() int { return c.ticket.Size }

// Put is Exchange.Put.
func (c *Client) Put(ctx context.Context, key string, value []byte) error {
	if len(key) > MaxKey || len(value) > MaxValue {
		return fmt.Errorf("put: a key of %d and a value of %d bytes, where %d and %d are the most: %w",
			len(key), len(value), MaxKey, MaxValue, ErrRefused)
	}
	_, err := c.ask(ctx, request{Op: opPut, Key: key, Value: value})
	if err != nil {
		return fmt.Errorf("rank %d puts %q: %w", c.ticket.Rank, key, err)
	}
	return nil
}

// Get is Exchange.Get. A Get that its context ended goes on waiting in the hub
// until the value comes or the client is closed; nobody hears of it.
func (c *Client) Get(ctx context.Context, rank int, key string) ([]byte, error) {
	value, err := c.ask(ctx, request{Op: opGet, Rank: rank, Key: key})
	if err != nil {
		return nil, fmt.Errorf("rank %d waits for %q of rank %d: %w", c.ticket.Rank, key, rank, err)
	}
	return value, nil
}

// ask sends a request and waits for the answer.
func (c *Client) ask(ctx context.Context, q request) ([]byte, error) {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.gone != nil {
		defer c.mu.Unlock()
		return nil, c.gone
	}
	c.last++
	q.ID = c.last
	c.waiting[q.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, q.ID)
		c.mu.Unlock()
	}()
	c.sending.Lock()
	err := send(c.conn, q, patience)
	c.sending.Unlock()
	if err != nil {
		// Half a frame may be out: nothing can follow it. The reader ends and
		// knows better why, if the hub is gone.
		_ = c.conn.Close()
	}
	select {
	case r := <-answer:
		switch {
		case r.Lost != nil:
			return nil, r.Lost
		case r.Refused != "":
			return nil, fmt.Errorf("%w: %s", ErrRefused, r.Refused)
		}
		return r.Value, nil
	case <-c.done:
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, c.gone
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// read hands answers to who waits for them, until the connection ends.
func (c *Client) read() {
	defer close(c.done)
	for {
		var r reply
		err := receive(c.conn, &r, patience)
		c.mu.Lock()
		if err != nil {
			c.gone = fmt.Errorf("%w: %w", ErrGone, err)
			c.mu.Unlock()
			_ = c.conn.Close()
			return
		}
		if answer := c.waiting[r.ID]; answer != nil {
			delete(c.waiting, r.ID)
			answer <- r // it has room for one
		}
		c.mu.Unlock()
	}
}

// Close leaves: who waits for this rank hears that it has left. What the rank
// has put stays. Requests under way end with ErrGone. The second time it does
// nothing.
func (c *Client) Close() {
	c.sending.Lock()
	_ = send(c.conn, request{Op: opLeave}, patience) // if the hub is gone there is nobody to tell
	c.sending.Unlock()
	_ = c.conn.Close()
	<-c.done
}
