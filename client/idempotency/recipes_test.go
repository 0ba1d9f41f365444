package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/seqledger/seqledger/client/idempotency"
)

// provider is a payment service. Its second answer is lost.
type provider struct{ charges map[string]int }

func (p *provider) charge(key string, amount int) (id string, err error) {
	p.charges[key] = amount
	if len(p.charges) == 2 {
		return "", errors.New("connection reset")
	}
	return fmt.Sprintf("ch_%d", len(p.charges)), nil
}

// find asks the provider whether a charge was made.
func (p *provider) find(key string) (id string, found bool) {
	_, found = p.charges[key]
	return fmt.Sprintf("ch_%d", len(p.charges)), found
}

// A card is charged once per order. When it is unknown whether the provider made the charge, a retry does not request
// it again: it looks the charge up at the provider and settles the record.
func Example_chargeACardOnce() {
	ctx, bank := context.Background(), &provider{map[string]int{}}
	store, ok := idempotency.Memory().(idempotency.Resolver) // in production a ledger, or a database
	if !ok {
		log.Fatal("this store settles nothing")
	}
	pay := func(order string, amount int) {
		key := idempotency.RecordKey{Namespace: "charges", Key: order}
		done, err := idempotency.Do(ctx, store, key, func(context.Context, *idempotency.Owner) ([]byte, error) {
			id, err := bank.charge(order, amount) // the order identifies the charge to the provider, too
			return []byte(id), err
		})
		unknown, ok := errors.AsType[*idempotency.Error](err)
		switch {
		case err == nil:
			fmt.Println(order, "is paid by", string(done.Response))
		case ok && unknown.Code == idempotency.CodeOutcomeUnknown:
			state, result := idempotency.Rejected, idempotency.Result{Response: []byte("not charged")}
			if id, found := bank.find(order); found {
				state, result.Response = idempotency.Committed, []byte(id)
			}
			if _, err := store.Resolve(ctx, &key, state, result); err != nil {
				log.Fatal(err)
			}
			fmt.Println(order, "is settled:", string(result.Response))
		default:
			fmt.Println(order, "is open:", err)
		}
	}
	pay("order-1", 500)
	pay("order-1", 500) // the customer clicked twice
	pay("order-2", 700) // the answer is lost
	pay("order-2", 700) // nothing is charged again
	pay("order-2", 700)
	fmt.Println(len(bank.charges), "charges")
	// Output:
	// order-1 is paid by ch_1
	// order-1 is paid by ch_1
	// order-2 is open: connection reset
	// order-2 is settled: ch_2
	// order-2 is paid by ch_2
	// 2 charges
}

// A webhook is delivered at least once. The key is the event's own id, and the principal is the sender, so that the
// same id from two senders does not collide.
func Example_webhook() {
	store, stock := idempotency.Memory(), 10 // in production a database
	handle := func(sender, event string, sold int) {
		key := idempotency.RecordKey{Namespace: "webhooks", Principal: sender, Key: event}
		// The same id with another body is the sender's mistake, and is refused.
		body := &idempotency.Request{Namespace: "webhooks", Body: fmt.Append(nil, sold)}
		fingerprint, err := idempotency.NewFingerprint(idempotency.FingerprintRaw, nil, body)
		if err != nil {
			log.Fatal(err)
		}
		options := idempotency.DoOptions{Fingerprint: fingerprint}
		done, err := options.Do(context.Background(), store, key,
			func(context.Context, *idempotency.Owner) ([]byte, error) {
				stock -= sold // in a database: store.WithTx, which commits both or neither
				return fmt.Append(nil, "stock ", stock), nil
			})
		if refused, ok := errors.AsType[*idempotency.Error](err); ok {
			fmt.Println(event, refused.Code)
			return
		}
		fmt.Println(event, string(done.Response), done.Replayed)
	}
	handle("shop", "evt_1", 3)
	handle("shop", "evt_1", 3) // delivered again
	handle("shop", "evt_1", 4) // another event with the same id
	handle("till", "evt_1", 2) // from another sender
	// Output:
	// evt_1 stock 7 false
	// evt_1 stock 7 true
	// evt_1 key-reused
	// evt_1 stock 5 false
}
