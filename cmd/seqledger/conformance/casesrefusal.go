package conformance

import (
	"fmt"
)

// refusal: a condition that does not hold, in the middle of other writes.
func refusal(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	before := b.submitMany(3)
	refused := b.submit(command{Set: "stock", If: "present"})
	b.submitMany(3) // they may be committed, or not executed because of the refusal
	if err := b.settleTo(committed, before...); err != nil {
		return err
	}
	if err := b.want(notExecuted, refused); err != nil {
		return err
	}
	if err := b.resume(); err != nil {
		return err
	}
	after := b.submitMany(3)
	if err := b.settleTo(committed, after...); err != nil {
		return err
	}
	return b.conclude()
}

// refusalWithCopy: the first copy of a write is in flight while a second one is refused. Then the condition becomes
// true, and the first copy arrives.
func refusalWithCopy(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.submit(command{})
	if err := b.settle(); err != nil {
		return err
	}
	b.proxy.setPlan(once(fault{kind: hold}))
	refused := b.submit(command{Set: "stock", If: "present"})
	if err := b.settleTo(notExecuted, refused); err != nil {
		return err
	}
	if err := b.set("stock"); err != nil {
		return &setupError{err}
	}
	if _, err := b.proxy.release(b.ctx); err != nil {
		return fmt.Errorf("the held copy: %w", err)
	}
	if err := b.resume(); err != nil {
		return err
	}
	after := b.submitMany(3)
	if err := b.settleTo(committed, after...); err != nil {
		return err
	}
	return b.conclude()
}

// lostConditional: a write whose condition its own commit makes false, and whose answer is lost.
func lostConditional(b *bed) error {
	if err := b.open(); err != nil {
		return err
	}
	b.proxy.setPlan(once(fault{kind: lose}))
	id := b.submit(command{Set: "order", If: "absent"})
	if err := b.settleTo(committed, id); err != nil {
		return err
	}
	return b.conclude()
}

// once applies a fault to the first message with writes.
func once(f fault) func(procedure string) fault {
	done := false
	return func(procedure string) fault {
		if done || !isWrite(procedure) {
			return fault{}
		}
		done = true
		return f
	}
}
