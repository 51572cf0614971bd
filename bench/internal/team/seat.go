package team

import (
	"context"
	"errors"
	"runtime"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/msg"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
)

// seat is one rank's part of a pair whose other rank is in another process.
type seat struct {
	rig  *rig.Rig
	side *rig.Side
	rank pingpong.Rank
}

// newSeat makes an endpoint of the rank's device that is not connected yet.
func newSeat(g *rig.Rig, rank int, backend string) (s *seat, err error) {
	s = &seat{rig: g, rank: pingpong.Rank{Number: rank}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
			s = nil
		}
	}()
	if s.side, err = rig.NewSide(backend, g.Devices[0], g.Monitor); err != nil {
		return s, err
	}
	if s.rank.End, err = msg.NewEndpoint(g.Devices[0], s.side.Registrar); err != nil {
		return s, err
	}
	s.rank.Meet = pingpong.Messages{End: s.rank.End}
	return s, nil
}

func (s *seat) prepare(kind memory.Kind, n int) error {
	if err := s.letGo(); err != nil {
		return err
	}
	src, err := memory.NewSource(s.rig.Mapper, kind, n, rig.PoolPairs)
	if err != nil {
		return err
	}
	s.rank.Buffers = src
	runtime.GC() // so that none falls into a game
	return nil
}

func (s *seat) letGo() error {
	src := s.rank.Buffers
	s.rank.Buffers = nil
	if src == nil {
		return nil
	}
	return src.Close()
}

// errNoBuffers is a game before Prepare, or after one that failed.
var errNoBuffers = errors.New("no buffers are prepared")

func (s *seat) play(ctx context.Context, seed uint64, warm, n int) (pingpong.Sample, error) {
	if s.rank.Buffers == nil {
		return pingpong.Sample{}, errNoBuffers
	}
	return s.rank.Play(ctx, seed, warm, n)
}

func (s *seat) close() error {
	err := s.letGo()
	if s.rank.End != nil {
		err = errors.Join(err, s.rank.End.Close())
	}
	if s.side != nil {
		err = errors.Join(err, s.side.Close())
	}
	return err
}
