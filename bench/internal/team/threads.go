package team

import (
	"context"
	"errors"
	"runtime"

	"example.com/holdfast/bench/internal/memory"
	"example.com/holdfast/bench/internal/pingpong"
	"example.com/holdfast/bench/internal/rig"
)

// Threads is a team of two goroutines of this process.
type Threads struct {
	Rig *rig.Rig // with both ranks; closed by Close
}

var _ Team = Threads{}

// Notes are the rig's lines.
func (t Threads) Notes() [][2]string { return t.Rig.Lines() }

// Lacks is the rig's.
func (t Threads) Lacks(backend string) error { return t.Rig.Lacks(backend) }

// Close closes the rig.
func (t Threads) Close() error { return t.Rig.Close() }

// Pair makes a pair of the rig.
func (t Threads) Pair(backend string) (Pair, error) {
	p, err := t.Rig.NewPair(backend)
	if err != nil {
		return nil, err
	}
	return &threadPair{mapper: t.Rig.Mapper, pair: p}, nil
}

type threadPair struct {
	mapper memory.Mapper
	pair   *rig.Pair
	game   pingpong.Game
}

func (p *threadPair) Name() string { return p.pair.Name }

func (p *threadPair) Prepare(_ context.Context, kind memory.Kind, n int) error {
	if err := p.letGo(); err != nil {
		return err
	}
	for i := range p.game.Ranks {
		src, err := memory.NewSource(p.mapper, kind, n, rig.PoolPairs)
		if err != nil {
			return err
		}
		p.game.Ranks[i] = pingpong.Rank{End: p.pair.Ends[i], Buffers: src}
	}
	runtime.GC() // so that none falls into a game
	return nil
}

// letGo gives the buffers back.
func (p *threadPair) letGo() error {
	var errs []error
	for i := range p.game.Ranks {
		if src := p.game.Ranks[i].Buffers; src != nil {
			errs = append(errs, src.Close())
		}
		p.game.Ranks[i] = pingpong.Rank{}
	}
	return errors.Join(errs...)
}

func (p *threadPair) Play(ctx context.Context, warm, n int) (pingpong.Sample, error) {
	return p.game.Play(ctx, warm, n)
}

func (p *threadPair) Close() error { return errors.Join(p.letGo(), p.pair.Close()) }
