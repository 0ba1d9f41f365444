package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/seqledger/seqledger/internal/testkit/freeport"
	"github.com/seqledger/seqledger/internal/testkit/process"
)

// serveEtcd is a member's process. members are the addresses of all members for each other, its own first.
func serveEtcd(ctx context.Context, dir string, members []string) error {
	config := embed.NewConfig()
	config.Dir, config.QuotaBackendBytes, config.Name = dir, 8<<30, members[0]
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop().WithOptions(zap.IncreaseLevel(zapcore.FatalLevel)))
	address, err := freeport.Address()
	if err != nil {
		return err
	}
	clients, peers := []url.URL{{Scheme: "http", Host: address}}, []url.URL{{Scheme: "http", Host: members[0]}}
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	config.ListenPeerUrls, config.AdvertisePeerUrls = peers, peers
	var cluster []string
	for _, member := range members {
		cluster = append(cluster, member+"=http://"+member)
	}
	config.InitialCluster = strings.Join(cluster, ",")
	s, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	defer s.Close()
	ready := s.Server.ReadyNotify()
	for {
		select {
		case <-ready: // when there is a leader
			fmt.Println(address)
			ready = nil
		case err := <-s.Err():
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// etcd is processes of etcd: one member, or three that are a cluster.
type etcd struct {
	members        int
	peers, clients []string // addresses
}

func (e *etcd) launch(ctx context.Context, dir string) ([]*process.Process, error) {
	for len(e.peers) < e.members {
		peer, err := freeport.Address()
		if err != nil {
			return nil, err
		}
		e.peers = append(e.peers, peer)
	}
	started := make([]*process.Process, e.members)
	e.clients = make([]string, e.members)
	var g errgroup.Group // all at once: none answers before a majority is up
	for i, peer := range e.peers {
		g.Go(func() (err error) {
			members := append([]string{peer}, slices.Delete(slices.Clone(e.peers), i, i+1)...)
			list, data := strings.Join(members, ","), filepath.Join(dir, fmt.Sprint("member", i+1))
			if err := os.MkdirAll(data, 0o700); err != nil {
				return err
			}
			started[i], e.clients[i], err = launchSelf(ctx, data, "-serve", "etcd", "-members", list)
			return err
		})
	}
	return started, g.Wait()
}

func (e *etcd) connect(ctx context.Context, at placement) (conn, error) {
	c := &etcdConn{}
	for range at.connections {
		one, err := clientv3.New(clientv3.Config{
			Endpoints: e.clients, Context: ctx, DialTimeout: process.StartsWithin, Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.clients = append(c.clients, one)
	}
	return c, nil
}

// etcdConn calls over some connections, each shared by many callers.
type etcdConn struct{ clients []*clientv3.Client }

// do is the work of one write, and of its repeat. What the stream has reached is compared as
// text. The receipt is the stored request and the revision that stored it.
func (c *etcdConn) do(ctx context.Context, j *job, _ bool) (answer, error) {
	head := "s/" + j.client()
	receipt := fmt.Sprintf("r/%s/%d", j.client(), j.sequence%64)
	request := fmt.Sprintf("%d %x %x", j.sequence, j.key(), j.hash())
	expected := clientv3.Compare(clientv3.Value(head), "=", strconv.FormatUint(j.sequence-1, 10))
	if j.sequence == 1 {
		expected = clientv3.Compare(clientv3.CreateRevision(head), "=", 0)
	}
	response, err := c.clients[j.stream%len(c.clients)].Txn(ctx).If(expected).Then(
		clientv3.OpPut(head, strconv.FormatUint(j.sequence, 10)),
		clientv3.OpPut(receipt, request),
		clientv3.OpPut(fmt.Sprintf("w/%s/%d", j.client(), j.sequence), string(j.payload)),
	).Else(clientv3.OpGet(receipt)).Commit()
	if err != nil {
		return answer{}, err
	}
	if response.Succeeded {
		return answer{reply: strconv.FormatInt(response.Header.Revision, 10)}, nil
	}
	stored := response.Responses[0].GetResponseRange().GetKvs()
	if len(stored) != 1 || string(stored[0].Value) != request {
		return answer{}, errors.New("refused: another request has this sequence, or a gap")
	}
	return answer{reply: strconv.FormatInt(stored[0].ModRevision, 10), replayed: true}, nil
}

func (c *etcdConn) close() (err error) {
	for _, one := range c.clients {
		err = errors.Join(err, one.Close())
	}
	return err
}
