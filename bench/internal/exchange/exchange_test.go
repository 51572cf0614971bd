package exchange

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/holdfast/internal/leaktest"
)

// limit ends what hangs.
const limit = 30 * time.Second

// ticketVar makes the test binary be a rank of its own.
const ticketVar = "HOLDFAST_TEST_TICKET"

func TestMain(m *testing.M) {
	if s := os.Getenv(ticketVar); s != "" {
		asRank(s)
	}
	leaktest.Main(m)
}

// asRank joins, puts its process number, and waits for what never comes.
func asRank(ticket string) {
	t, err := ParseTicket(ticket)
	if err == nil {
		var c *Client
		if c, err = Join(context.Background(), t); err == nil {
			_ = c.Put(context.Background(), "pid", fmt.Appendf(nil, "%d", os.Getpid()))
			_, err = c.Get(context.Background(), 0, "never")
		}
	}
	fmt.Println(err)
	os.Exit(3)
}

// bounded is a context that ends what hangs.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errors.New("the test hangs"))
	t.Cleanup(cancel)
	return ctx
}

// hub is a hub that waits for shorter than usual.
func hub(t *testing.T, size int, patience time.Duration) *Hub {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h := serve(l, size, patience)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

func join(t *testing.T, h *Hub, rank int) *Client {
	t.Helper()
	c, err := Join(bounded(t), h.Ticket(rank))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// All ranks put and get from all, whoever comes first; values come as they
// went, empty and largest ones too.
func TestEverybodyGetsWhatEverybodyPut(t *testing.T) {
	const ranks = 5
	h := hub(t, ranks, patience)
	value := func(rank, i int) string {
		switch i {
		case 0:
			return ""
		case 1:
			return strings.Repeat(string(rune('a'+rank)), MaxValue)
		}
		return fmt.Sprintf("%d\x00\xff of %d", i, rank)
	}
	var all sync.WaitGroup
	for rank := range ranks {
		c := join(t, h, rank)
		require.Equal(t, rank, c.Rank())
		require.Equal(t, ranks, c.Size())
		ctx := bounded(t)
		for i := range 4 {
			key := fmt.Sprint("key ", i)
			all.Go(func() {
				for other := range ranks {
					got, err := c.Get(ctx, other, key)
					if err != nil || string(got) != value(other, i) {
						t.Errorf("rank %d: %d bytes from rank %d under %q: %v", rank, len(got), other, key, err)
					}
				}
			})
			all.Go(func() {
				if err := c.Put(ctx, key, []byte(value(rank, i))); err != nil {
					t.Errorf("rank %d: %v", rank, err)
				}
			})
		}
	}
	all.Wait()
}

func TestAPutIsOnceAndOfBoundedLength(t *testing.T) {
	c := join(t, hub(t, 1, patience), 0)
	ctx := bounded(t)
	require.NoError(t, c.Put(ctx, "a", []byte("1")))
	err := c.Put(ctx, "a", []byte("2"))
	require.ErrorIs(t, err, ErrRefused)
	require.ErrorContains(t, err, `rank 0 has put "a" before`)
	got, err := c.Get(ctx, 0, "a")
	require.NoError(t, err)
	require.Equal(t, "1", string(got))
	require.ErrorIs(t, c.Put(ctx, "", nil), ErrRefused)
	require.ErrorIs(t, c.Put(ctx, strings.Repeat("k", MaxKey+1), nil), ErrRefused)
	require.ErrorIs(t, c.Put(ctx, "b", make([]byte, MaxValue+1)), ErrRefused)
	for _, rank := range []int{-1, 1} {
		_, err = c.Get(ctx, rank, "a")
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorContains(t, err, "there is no rank")
	}
}

// The bound of a Get names who is missing and what, whether the rank never came
// or is only slow; the connection serves on.
func TestABoundNamesWhoIsMissing(t *testing.T) {
	h := hub(t, 2, patience)
	c := join(t, h, 0)
	late := func() {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 10*time.Millisecond, errors.New("not within 10 ms"))
		defer cancel()
		_, err := c.Get(ctx, 1, "address")
		require.EqualError(t, err, `rank 0 waits for "address" of rank 1: not within 10 ms`)
	}
	late()
	slow := join(t, h, 1)
	late()
	require.NoError(t, slow.Put(bounded(t), "address", []byte("here")))
	got, err := c.Get(bounded(t), 1, "address")
	require.NoError(t, err)
	require.Equal(t, "here", string(got))
}

// requireLost: the error is that rank 1 is gone.
func requireLost(t *testing.T, err error, reason string) {
	t.Helper()
	var lost *LostError
	require.ErrorAs(t, err, &lost)
	require.Equal(t, 1, lost.Rank)
	require.Contains(t, lost.Reason, reason)
	require.ErrorContains(t, err, "rank 1 is gone")
}

// A rank that leaves, is lost or is declared lost ends the waits for it, those
// under way and later ones. What it put stays, and it does not come back.
func TestWhoIsGone(t *testing.T) {
	for _, how := range []struct {
		reason string
		end    func(*Hub, *Client)
	}{
		{"it has left", func(_ *Hub, c *Client) { c.Close() }},
		{"its connection ended", func(_ *Hub, c *Client) { _ = c.conn.Close() }},
		{"exit status 7", func(h *Hub, _ *Client) { h.Lose(1, "exit status 7") }},
		{"it sent garbage", func(_ *Hub, c *Client) { _, _ = c.conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")) }},
		{"it sent garbage", func(_ *Hub, c *Client) { _, _ = c.conn.Write([]byte{0, 0, 0, 0}) }},
		{"it sent garbage", func(_ *Hub, c *Client) { _, _ = c.conn.Write([]byte("\x00\x00\x00\x04{{{{")) }},
		{"no request \"dance\"", func(_ *Hub, c *Client) { _ = send(c.conn, request{Op: "dance"}, patience) }},
		{"in the middle of a frame", func(_ *Hub, c *Client) { // and then nothing more comes
			_, _ = c.conn.Write([]byte{0, 0, 0, 9, '{'})
		}},
	} {
		t.Run(how.reason, func(t *testing.T) {
			h := hub(t, 2, 50*time.Millisecond)
			c, other := join(t, h, 0), join(t, h, 1)
			require.NoError(t, other.Put(bounded(t), "was", []byte("here")))
			waited := make(chan error, 1)
			go func() {
				_, err := c.Get(bounded(t), 1, "never")
				waited <- err
			}()
			how.end(h, other)
			requireLost(t, <-waited, how.reason)
			_, err := c.Get(bounded(t), 1, "later")
			requireLost(t, err, how.reason)
			got, err := c.Get(bounded(t), 1, "was")
			require.NoError(t, err)
			require.Equal(t, "here", string(got))
			_, err = Join(bounded(t), h.Ticket(1))
			require.ErrorIs(t, err, ErrRefused)
			require.ErrorContains(t, err, "rank 1 is gone: ")
		})
	}
}

// A process that is killed is lost at once.
func TestAKilledProcessIsLost(t *testing.T) {
	h := hub(t, 2, patience)
	c := join(t, h, 0)
	cmd := exec.CommandContext(bounded(t), os.Args[0])
	cmd.Env = append(os.Environ(), ticketVar+"="+h.Ticket(1).String())
	require.NoError(t, cmd.Start())
	_, err := c.Get(bounded(t), 1, "pid")
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := c.Get(bounded(t), 1, "never")
		waited <- err
	}()
	require.NoError(t, cmd.Process.Kill())
	requireLost(t, <-waited, "connection")
	require.Error(t, cmd.Wait())
}

// Where the hub goes, every rank hears it.
func TestTheHubIsGone(t *testing.T) {
	h := hub(t, 2, patience)
	cmd := exec.CommandContext(bounded(t), os.Args[0])
	cmd.Env = append(os.Environ(), ticketVar+"="+h.Ticket(1).String())
	var out strings.Builder
	cmd.Stdout = &out
	require.NoError(t, cmd.Start())
	c := join(t, h, 0)
	_, err := c.Get(bounded(t), 1, "pid")
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := c.Get(bounded(t), 1, "never")
		waited <- err
	}()
	require.NoError(t, h.Close())
	require.ErrorIs(t, <-waited, ErrGone)
	require.ErrorIs(t, c.Put(bounded(t), "a", nil), ErrGone)
	require.Error(t, cmd.Wait())
	require.Equal(t, 3, cmd.ProcessState.ExitCode())
	require.Contains(t, out.String(), ErrGone.Error())
	_, err = Join(bounded(t), h.Ticket(1))
	require.ErrorContains(t, err, "rank 1 cannot join the exchange at 127.0.0.1:")
}

// Who is refused is told why, and does not disturb who is there.
func TestRefused(t *testing.T) {
	h := hub(t, 2, patience)
	c, other := join(t, h, 0), join(t, h, 1)
	for why, spoil := range map[string]func(*Ticket){
		"rank 1 is here already":             func(*Ticket) {},
		"the secret is not that of this job": func(t *Ticket) { t.Secret = "guessed" },
		"the job has 2 ranks, not 3":         func(t *Ticket) { t.Size = 3 },
		"there is no rank 2 among 2":         func(t *Ticket) { t.Rank = 2 },
	} {
		ticket := h.Ticket(1)
		spoil(&ticket)
		_, err := Join(bounded(t), ticket)
		require.ErrorIs(t, err, ErrRefused, why)
		require.ErrorContains(t, err, why)
		require.NotContains(t, err.Error(), h.secret)
	}
	require.NoError(t, other.Put(bounded(t), "k", []byte("v")))
	got, err := c.Get(bounded(t), 1, "k")
	require.NoError(t, err)
	require.Equal(t, "v", string(got))
	require.Eventually(t, func() bool { return len(h.Refused()) == 4 }, limit, time.Millisecond)
	require.Contains(t, strings.Join(h.Refused(), "\n"), "rank 1 is here already")
	require.NotContains(t, strings.Join(h.Refused(), "\n"), h.secret)
}

// Whoever else finds the port is closed and remembered, and concerns nobody.
func TestStrangers(t *testing.T) {
	h := hub(t, 2, 50*time.Millisecond)
	c := join(t, h, 0)
	frame := func(n int, body string) string {
		return string(append([]byte(protocol), version)) + string(binary.BigEndian.AppendUint32(nil, uint32(n))) + body
	}
	for i, s := range []struct{ says, why string }{
		{"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "does not speak this protocol"},
		{"hold", "timeout"}, // and then nothing
		{protocol + "\x02", "speaks version 2"},
		{frame(1<<30, ""), "garbage: a frame of 1073741824 bytes"},
		{frame(4, "null"), "the secret is not that of this job"},
		{frame(2, "[]"), "garbage"},
		{frame(20, "{"), "in the middle of a frame"},
	} {
		conn, err := net.Dial("tcp", h.listener.Addr().String())
		require.NoError(t, err)
		_, err = conn.Write([]byte(s.says))
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(limit)))
		_, err = io.Copy(io.Discard, conn)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the hub has closed it")
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return len(h.Refused()) == i+1 }, limit, time.Millisecond)
		require.Contains(t, h.Refused()[i], s.why)
	}
	for range 2 * keptRefusals {
		conn, err := net.Dial("tcp", h.listener.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	other := join(t, h, 1)
	require.NoError(t, other.Put(bounded(t), "k", nil))
	_, err := c.Get(bounded(t), 1, "k")
	require.NoError(t, err)
	require.LessOrEqual(t, len(h.Refused()), keptRefusals)
}

// What a client meets that is no hub of its version.
func TestNotAHub(t *testing.T) {
	for _, s := range []struct{ says, want string }{
		{"HTTP/1.1 400 Bad Request\r\n", "does not speak this protocol"},
		{protocol + "\x02", "it speaks version 2 of the protocol, this is version 1"},
		{protocol + "\x01\x00\x00\x00\x01]", "garbage"},
		{protocol, "EOF"},
		{"", "EOF"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = c.Write([]byte(s.says))
				_, _ = io.CopyN(io.Discard, c, int64(len(protocol)+1)) // a reset would take what was written
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}
		}()
		_, err = Join(bounded(t), Ticket{Rank: 1, Size: 2, Addr: l.Addr().String(), Secret: "s"})
		require.ErrorContains(t, err, s.want)
		require.ErrorContains(t, err, "rank 1 cannot join the exchange at "+l.Addr().String())
		require.NoError(t, l.Close())
	}
}

// A hub that accepts and says nothing is waited for as long as the context
// allows.
func TestJoiningIsBounded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeoutCause(context.Background(), 20*time.Millisecond, errors.New("enough"))
	defer cancel()
	_, err = Join(ctx, Ticket{Rank: 1, Size: 2, Addr: l.Addr().String(), Secret: "s"})
	require.ErrorContains(t, err, "enough")
}

func TestTicket(t *testing.T) {
	for _, want := range []Ticket{{0, 1, "127.0.0.1:1", "S"}, {3, 12, "[::1]:40000", "TOKEN"}} {
		got, err := ParseTicket(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{"", "1", "1/2", "1/2@", "1/2@host", "2/2@host:1/hush", "-1/2@host:1/hush", "a/b@host:1/hush", "1/2@host:1/"} {
		_, err := ParseTicket(bad)
		require.ErrorIs(t, err, ErrRefused, bad)
		require.NotContains(t, err.Error(), "hush")
	}
}
