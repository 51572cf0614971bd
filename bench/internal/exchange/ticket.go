package exchange

import (
	"fmt"
	"strconv"
	"strings"
)

// Ticket is what a rank joins with.
type Ticket struct {
	Rank   int
	Size   int
	Addr   string // of the hub: "127.0.0.1:40123"
	Secret string // of the job
}

// String is the ticket as one word for an environment variable; ParseTicket
// reads it. It has the secret in it.
func (t Ticket) String() string {
	return fmt.Sprintf("%d/%d@%s/%s", t.Rank, t.Size, t.Addr, t.Secret)
}

// ParseTicket reads what String writes. The error does not show the secret.
func ParseTicket(s string) (Ticket, error) {
	numbers, where, ok := strings.Cut(s, "@")
	rank, size, ok2 := strings.Cut(numbers, "/")
	cut := strings.LastIndex(where, "/")
	if ok && ok2 && cut > 0 {
		r, errRank := strconv.Atoi(rank)
		n, errSize := strconv.Atoi(size)
		t := Ticket{Rank: r, Size: n, Addr: where[:cut], Secret: where[cut+1:]}
		if errRank == nil && errSize == nil && 0 <= r && r < n && t.Secret != "" {
			return t, nil
		}
	}
	return Ticket{}, fmt.Errorf("not a ticket: RANK/SIZE@HOST:PORT/SECRET with RANK below SIZE is needed: %w", ErrRefused)
}
