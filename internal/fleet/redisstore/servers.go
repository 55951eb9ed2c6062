package redisstore

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"
)

// servers are those of a store. No type of this package leads to one of the client library, which would cost each
// package that imports this one two seconds of the compiler, for instances of the library's generic types.
type servers interface {
	ping(ctx context.Context) error
	close() error
	del(ctx context.Context, keys ...string) error
	get(ctx context.Context, key string) (string, error)
	// getAll returns a text for each key, which is empty if there is no such key.
	getAll(ctx context.Context, keys []string) ([]string, error)
	set(ctx context.Context, key string, value any, ttl time.Duration) error
	hget(ctx context.Context, key, field string) (string, error)
	hgetAll(ctx context.Context, key string) (map[string]string, error)
	run(ctx context.Context, sc *script, keys []string, args ...any) (any, error)
	runReadOnly(ctx context.Context, sc *script, keys []string) (any, error)
	// pipeline runs scripts by their hashes or texts and returns a reply and an error for each.
	pipeline(ctx context.Context, all []invocation, inFull bool) ([]any, []error)
	// eachReplication calls f with what each server that accepts writes says of its replication; several calls run at once.
	eachReplication(ctx context.Context, f func(info string))
	connections() (total, idle int)
}

// script is a program in Lua that a server runs, and remembers by its hash.
type script struct{ text, hash string }

func newScript(text string) *script {
	sum := sha1.Sum([]byte(text))
	return &script{text, hex.EncodeToString(sum[:])}
}

type libraryClient struct{ redis.UniversalClient }

func (c libraryClient) ping(ctx context.Context) error { return c.Ping(ctx).Err() }

func (c libraryClient) close() error { return c.Close() }

func (c libraryClient) del(ctx context.Context, keys ...string) error {
	return c.Del(ctx, keys...).Err()
}

func (c libraryClient) get(ctx context.Context, key string) (string, error) {
	return c.Get(ctx, key).Result()
}

func (c libraryClient) getAll(ctx context.Context, keys []string) ([]string, error) {
	cmds := make([]*redis.StringCmd, len(keys))
	_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, key := range keys {
			cmds[i] = p.Get(ctx, key)
		}
		return nil
	}) // Each command has its own error.
	texts := make([]string, len(keys))
	for i, cmd := range cmds {
		var err error
		if texts[i], err = cmd.Result(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
	}
	return texts, nil
}

func (c libraryClient) set(ctx context.Context, key string, value any, ttl time.Duration) error {
	return c.Set(ctx, key, value, ttl).Err()
}

func (c libraryClient) hget(ctx context.Context, key, field string) (string, error) {
	return c.HGet(ctx, key, field).Result()
}

func (c libraryClient) hgetAll(ctx context.Context, key string) (map[string]string, error) {
	return c.HGetAll(ctx, key).Result()
}

func (c libraryClient) run(ctx context.Context, sc *script, keys []string, args ...any) (any, error) {
	reply, err := c.EvalSha(ctx, sc.hash, keys, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return c.Eval(ctx, sc.text, keys, args...).Result()
	}
	return reply, err
}

func (c libraryClient) runReadOnly(ctx context.Context, sc *script, keys []string) (any, error) {
	reply, err := c.EvalShaRO(ctx, sc.hash, keys).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		return c.EvalRO(ctx, sc.text, keys).Result()
	}
	return reply, err
}

func (c libraryClient) pipeline(ctx context.Context, all []invocation, inFull bool) ([]any, []error) {
	cmds := make([]*redis.Cmd, len(all))
	_, _ = c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, one := range all {
			if inFull {
				cmds[i] = p.Eval(ctx, one.script.text, one.keys, one.args...)
			} else {
				cmds[i] = p.EvalSha(ctx, one.script.hash, one.keys, one.args...)
			}
		}
		return nil
	}) // Each command has its own error.
	replies, errs := make([]any, len(all)), make([]error, len(all))
	for i, cmd := range cmds {
		replies[i], errs[i] = cmd.Result()
	}
	return replies, errs
}

func (c libraryClient) eachReplication(ctx context.Context, f func(info string)) {
	ask := func(ctx context.Context, one *redis.Client) error {
		if text, err := one.Info(ctx, "replication").Result(); err == nil {
			f(text)
		}
		return nil
	}
	switch c := c.UniversalClient.(type) {
	case *redis.ClusterClient:
		_ = c.ForEachMaster(ctx, ask)
	case *redis.Client:
		_ = ask(ctx, c)
	}
}

func (c libraryClient) connections() (total, idle int) {
	one, ok := c.UniversalClient.(*redis.Client)
	if !ok { // A cluster's may ask the servers.
		return 0, 0
	}
	p := one.PoolStats()
	return int(p.TotalConns), int(p.IdleConns)
}
