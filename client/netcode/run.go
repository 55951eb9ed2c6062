package netcode

import (
	"context"
	"fmt"
	"time"
)

// Run makes ticks at a rate per second, from 1 to 1000, until ctx ends: an
// Update, the game's turn, and a Flush. The driver belongs to it meanwhile, so
// that the game may use it in its turn alone; tick may be nil. A tick that comes
// late is made once.
//
// It returns ctx.Err(), or the error of Update, after the game's turn of that
// tick. The caller closes the driver.
func (d *Driver) Run(ctx context.Context, tickRate int, tick func()) error {
	if tickRate < 1 || tickRate > 1000 {
		return fmt.Errorf("%w: tick rate %d is not within 1 and 1000", ErrConfig, tickRate)
	}
	t := time.NewTicker(time.Second / time.Duration(tickRate))
	defer t.Stop()
	for {
		err := d.Update(time.Now())
		if tick != nil {
			tick()
		}
		if err != nil {
			return err
		}
		d.Flush()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
