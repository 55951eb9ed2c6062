package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ferryrelay/ferry/alloc"
)

func TestKind(t *testing.T) {
	for _, k := range []Kind{KindPlayer, KindServer} {
		if got, err := ParseKind(k.String()); err != nil || got != k {
			t.Errorf("ParseKind(%v) = %v, %v", k, got, err)
		}
	}
	for _, s := range []string{"", "Player", "admin"} {
		if _, err := ParseKind(s); err == nil {
			t.Errorf("ParseKind(%q): no error", s)
		}
	}
	if got := Kind(9).String(); got != "kind(9)" {
		t.Errorf("String = %q", got)
	}
}

func TestTokensRefused(t *testing.T) {
	good := Token{Secret: tokenAnna, Project: "p", Environment: "e"}
	change := func(f func(*Token)) []Token {
		bad := good
		bad.Secret = tokenBert
		f(&bad)
		return []Token{good, bad}
	}
	tests := map[string]struct {
		tokens []Token
		want   error
	}{
		"short":              {change(func(t *Token) { t.Secret = "0123456789abcde" }), ErrSecret},
		"long":               {change(func(t *Token) { t.Secret = strings.Repeat("x", maxSecret+1) }), ErrSecret},
		"with a space":       {change(func(t *Token) { t.Secret += " x" }), ErrSecret},
		"with a line end":    {change(func(t *Token) { t.Secret += "\n" }), ErrSecret},
		"not ASCII":          {change(func(t *Token) { t.Secret += "é" }), ErrSecret},
		"duplicate":          {change(func(t *Token) { t.Secret = good.Secret }), ErrDuplicate},
		"no project":         {change(func(t *Token) { t.Project = "" }), ErrTokenTenant},
		"no environment":     {change(func(t *Token) { t.Environment = "" }), ErrTokenTenant},
		"long project":       {change(func(t *Token) { t.Project = strings.Repeat("p", 57) }), alloc.ErrTenantName},
		"NUL in environment": {change(func(t *Token) { t.Environment = "a\x00b" }), alloc.ErrTenantName},
		"unknown kind":       {change(func(t *Token) { t.Kind = 2 }), ErrTokenKind},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newTokenTable(tt.tokens)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error = %v, want %v", err, tt.want)
			}
			if !strings.Contains(err.Error(), "token 1") || strings.Contains(err.Error(), tt.tokens[1].Secret) {
				t.Errorf("error = %v, want the index and no secret", err)
			}
		})
	}
}

func TestPrincipals(t *testing.T) {
	tokens := testTokens()
	tokens = append(tokens, Token{Secret: "bert-again-0123456789", Project: "game", Environment: "live", Player: "bert"},
		Token{Secret: "bert-server-0123456789", Project: "game", Environment: "live", Player: "bert", Kind: KindServer})
	table, err := newTokenTable(tokens)
	if err != nil {
		t.Fatal(err)
	}
	find := func(secret string) principal {
		p, ok := table.find(secret)
		if !ok {
			t.Fatalf("%s not found", secret)
		}
		return p
	}
	if find(tokenBert) != find("bert-again-0123456789") {
		t.Error("two tokens of one player are two principals")
	}
	names := make(map[string]bool)
	for _, s := range []string{tokenAnna, tokenBert, tokenServer, tokenStaging, tokenOther, "bert-server-0123456789"} {
		names[find(s).name] = true
	}
	if len(names) != 6 {
		t.Errorf("%d principals of 6", len(names))
	}
	if p := find(tokenAnna).player; p == "" || strings.Contains(p, "anna") {
		t.Errorf("derived player %q", p)
	}
}

func TestCaller(t *testing.T) {
	player := principal{kind: KindPlayer}
	server := principal{kind: KindServer}
	anonymous := principal{kind: KindPlayer, anonymous: true}
	tests := []struct {
		p    principal
		call callName
		want bool
	}{
		{player, callJoinCode, false}, {player, callAllocate, false},
		{server, callJoinCode, true}, {server, callJoin, true},
		{anonymous, callJoinCode, true}, {anonymous, callAllocate, false}, {anonymous, callJoin, false},
	}
	for _, tt := range tests {
		if got := tt.p.caller(tt.call).Server; got != tt.want {
			t.Errorf("%+v %s: Server = %v", tt.p, tt.call, got)
		}
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	token := Token{Secret: tokenAnna, Project: "p", Environment: "e", Player: "anna"}
	var out bytes.Buffer
	for _, v := range []any{token, &token, []Token{token}, Config{Tokens: []Token{token}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", token, "pointer", &token)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", token)
	hex := fmt.Sprintf("%x", tokenAnna)
	if s := out.String(); strings.Contains(s, tokenAnna) || strings.Contains(s, hex) {
		t.Errorf("printed the secret: %s", s)
	}
	if got, want := token.String(), "player p/e anna"; got != want {
		t.Errorf("String = %q, want %q", got, want)
	}
}
