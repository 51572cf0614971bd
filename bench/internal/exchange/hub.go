package exchange

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// patience is how long the hub and a client wait for what the other side has
// begun: the greeting, the rest of a frame, room to send an answer.
const patience = 10 * time.Second

// Hub serves the exchange of one job.
type Hub struct {
	size     int
	secret   string
	listener net.Listener
	patience time.Duration
	ctx      context.Context // ends in Close
	end      context.CancelFunc
	running  sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	ranks   []rankState
	changed chan struct{} // closed and made anew at every change of ranks
	refused []string
	closed  bool
}

// rankState is what the hub knows of a rank.
type rankState struct {
	conn   net.Conn // nil: never joined, or gone
	values map[string][]byte
	lost   *LostError // nil: not gone
}

// Listen makes the hub of a job of size ranks, at least one, on a port of the
// loopback interface that the system chooses. Errors are those of net.Listen.
func Listen(size int) (*Hub, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("exchange: %w", err)
	}
	return serve(l, size, patience), nil
}

func serve(l net.Listener, size int, patience time.Duration) *Hub {
	h := &Hub{size: size, secret: rand.Text(), listener: l, patience: patience,
		conns: make(map[net.Conn]struct{}), ranks: make([]rankState, size), changed: make(chan struct{})}
	for i := range h.ranks {
		h.ranks[i].values = make(map[string][]byte)
	}
	h.ctx, h.end = context.WithCancel(context.Background())
	h.running.Go(h.accept)
	return h
}

// Ticket is what rank joins with.
func (h *Hub) Ticket(rank int) Ticket {
	return Ticket{Rank: rank, Size: h.size, Addr: h.listener.Addr().String(), Secret: h.secret}
}

// Lose says that a rank is gone, as who started its process knows. It does
// nothing where that is known.
func (h *Hub) Lose(rank int, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lose(rank, reason)
}

// keptRefusals is how many refused connections are remembered.
const keptRefusals = 8

// Refused tells of the last few connections that were not those of a rank, in
// words, for the error of who waits for a rank that does not come.
func (h *Hub) Refused() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.refused)
}

// Close ends all connections and returns when nothing of the hub runs any
// more.
func (h *Hub) Close() error {
	h.mu.Lock()
	h.closed = true
	for c := range h.conns {
		_ = c.Close() // what was not sent, nobody waits for any more
	}
	h.mu.Unlock()
	h.end()
	err := h.listener.Close()
	h.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// accept takes connections until the hub is closed. A connection that fails
// before it is accepted is the business of who made it.
func (h *Hub) accept() {
	for {
		c, err := h.listener.Accept()
		switch {
		case err == nil:
		case errors.Is(err, net.ErrClosed):
			return
		default: // no descriptors left, or the like: wait for better times
			h.refuse("a connection could not be accepted", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-h.ctx.Done():
				return
			}
			continue
		}
		h.mu.Lock()
		if h.closed {
			_ = c.Close()
		} else {
			h.conns[c] = struct{}{}
			h.running.Go(func() { h.attend(c) })
		}
		h.mu.Unlock()
	}
}

// attend is one connection from its first byte to its last.
func (h *Hub) attend(c net.Conn) {
	defer func() {
		_ = c.Close()
		h.mu.Lock()
		delete(h.conns, c)
		h.mu.Unlock()
	}()
	rank, err := h.admit(c)
	if err != nil {
		return
	}
	err = h.answer(c, rank)
	reason := "its connection ended"
	switch {
	case errors.Is(err, errLeft):
		reason = "it has left"
	case !errors.Is(err, io.EOF):
		reason = fmt.Sprintf("its connection failed: %v", err)
	}
	h.Lose(rank, reason)
}

// admit reads the greeting and the ticket, and seats the rank. What is wrong is
// remembered before the other side hears of it.
func (h *Hub) admit(c net.Conn) (rank int, err error) {
	var t Ticket
	if t, err = h.hear(c); err == nil {
		err = h.seat(c, t)
	}
	if err != nil {
		h.refuse(c.RemoteAddr().String(), err)
		return 0, errors.Join(err, send(c, reply{Refused: err.Error()}, h.patience))
	}
	if err := send(c, reply{}, h.patience); err != nil {
		h.Lose(t.Rank, fmt.Sprintf("its connection failed: %v", err))
		return 0, err
	}
	return t.Rank, nil
}

// hear reads the greeting and the ticket.
func (h *Hub) hear(c net.Conn) (t Ticket, err error) {
	if err := c.SetDeadline(time.Now().Add(h.patience)); err != nil {
		return t, err
	}
	if err = heardHello(c); errors.Is(err, errStranger) {
		return t, err
	}
	// The answer to a wrong version is our own: the client tells.
	if err = errors.Join(err, hello(c)); err != nil {
		return t, err
	}
	err = receive(c, &t, h.patience)
	return t, err
}

// seat checks a ticket and notes the connection of its rank.
func (h *Hub) seat(c net.Conn, t Ticket) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case subtle.ConstantTimeCompare([]byte(t.Secret), []byte(h.secret)) == 0:
		return errors.New("the secret is not that of this job")
	case t.Size != h.size:
		return fmt.Errorf("the job has %d ranks, not %d", h.size, t.Size)
	case t.Rank < 0 || t.Rank >= h.size:
		return fmt.Errorf("there is no rank %d among %d", t.Rank, h.size)
	case h.ranks[t.Rank].lost != nil:
		return h.ranks[t.Rank].lost
	case h.ranks[t.Rank].conn != nil:
		return fmt.Errorf("rank %d is here already", t.Rank)
	}
	h.ranks[t.Rank].conn = c
	return nil
}

// errLeft is that a rank said it leaves.
var errLeft = errors.New("left")

// answer serves the requests of a rank until its connection ends, and says
// why it did.
func (h *Hub) answer(c net.Conn, rank int) error {
	ctx, cancel := context.WithCancel(h.ctx)
	defer cancel() // Gets of this connection that wait
	var sending sync.Mutex
	reply := func(r reply) error {
		sending.Lock()
		defer sending.Unlock()
		return send(c, r, h.patience)
	}
	for {
		var q request
		if err := receive(c, &q, h.patience); err != nil {
			return err
		}
		switch q.Op {
		case opPut:
			if err := reply(h.put(rank, q)); err != nil {
				return err
			}
		case opGet:
			h.running.Go(func() {
				r, err := h.get(ctx, q)
				if err == nil && reply(r) != nil {
					_ = c.Close() // a client that does not take its answers; the reader above finds out
				}
			})
		case opLeave:
			return errLeft
		default:
			return fmt.Errorf("it sent garbage: there is no request %q", q.Op)
		}
	}
}

func (h *Hub) put(rank int, q request) reply {
	h.mu.Lock()
	defer h.mu.Unlock()
	values := h.ranks[rank].values
	switch _, there := values[q.Key]; {
	case there:
		return reply{ID: q.ID, Refused: fmt.Sprintf("rank %d has put %q before", rank, q.Key)}
	case q.Key == "" || len(q.Key) > MaxKey:
		return reply{ID: q.ID, Refused: fmt.Sprintf("a key has 1 to %d bytes, not %d", MaxKey, len(q.Key))}
	case len(q.Value) > MaxValue:
		return reply{ID: q.ID, Refused: fmt.Sprintf("a value has at most %d bytes, not %d", MaxValue, len(q.Value))}
	}
	values[q.Key] = q.Value
	h.change()
	return reply{ID: q.ID}
}

// get waits for a value. Its error is that nobody waits for the answer any
// more.
func (h *Hub) get(ctx context.Context, q request) (reply, error) {
	if q.Rank < 0 || q.Rank >= h.size {
		return reply{ID: q.ID, Refused: fmt.Sprintf("there is no rank %d among %d", q.Rank, h.size)}, nil
	}
	for {
		h.mu.Lock()
		r := &h.ranks[q.Rank]
		value, there := r.values[q.Key]
		lost, changed := r.lost, h.changed
		h.mu.Unlock()
		switch {
		case there:
			return reply{ID: q.ID, Value: value}, nil
		case lost != nil:
			return reply{ID: q.ID, Lost: lost}, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return reply{}, ctx.Err()
		}
	}
}

// lose marks a rank as gone and ends its connection. mu is held.
func (h *Hub) lose(rank int, reason string) {
	r := &h.ranks[rank]
	if r.lost != nil {
		return
	}
	r.lost = &LostError{Rank: rank, Reason: reason}
	if r.conn != nil {
		_ = r.conn.Close() // its reader ends by that
		r.conn = nil
	}
	h.change()
}

// change wakes who waits. mu is held.
func (h *Hub) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// refuse remembers a connection that was not a rank's.
func (h *Hub) refuse(who string, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	if len(h.refused) == keptRefusals {
		h.refused = h.refused[1:]
	}
	h.refused = append(h.refused, fmt.Sprintf("%s: %v", who, why))
}
