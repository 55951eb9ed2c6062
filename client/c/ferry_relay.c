//go:build ignore

/* The line above keeps Go's tools away from this file; ferry_relay.h has the documentation. */
#include "ferry_relay.h"

#include <string.h>

/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104). */

typedef struct {
    uint32_t h[8];
    uint8_t block[64];
    size_t used;
    uint64_t total;
} sha256;

static const uint32_t sha256_k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, unsigned n) { return x >> n | x << (32 - n); }

static void sha256_block(sha256 *c, const uint8_t *p) {
    uint32_t w[64], v[8];
    unsigned i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (rotr(a, 7) ^ rotr(a, 18) ^ a >> 3) + w[i - 7] + (rotr(b, 17) ^ rotr(b, 19) ^ b >> 10);
    }
    memcpy(v, c->h, sizeof v);
    for (i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) +
                      sha256_k[i] + w[i];
        uint32_t t2 = (rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (i = 0; i < 8; i++) c->h[i] += v[i];
}

static void sha256_init(sha256 *c) {
    static const uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(c->h, h, sizeof h);
    c->used = 0;
    c->total = 0;
}

static void sha256_add(sha256 *c, const uint8_t *p, size_t n) {
    c->total += n;
    while (n > 0) {
        size_t k = sizeof c->block - c->used;
        if (k > n) k = n;
        memcpy(c->block + c->used, p, k);
        c->used += k;
        p += k;
        n -= k;
        if (c->used == sizeof c->block) {
            sha256_block(c, c->block);
            c->used = 0;
        }
    }
}

static void sha256_sum(sha256 *c, uint8_t out[32]) {
    uint64_t bits = c->total * 8;
    uint8_t pad = 0x80, len[8];
    unsigned i;
    for (i = 0; i < 8; i++) len[i] = (uint8_t)(bits >> (56 - 8 * i));
    sha256_add(c, &pad, 1);
    for (pad = 0; c->used != 56;) sha256_add(c, &pad, 1);
    sha256_add(c, len, 8);
    for (i = 0; i < 32; i++) out[i] = (uint8_t)(c->h[i / 4] >> (24 - 8 * (i % 4)));
}

void ferry_hmac_sha256(uint8_t mac[FERRY_MAC_LEN], const uint8_t *key, size_t key_len, const uint8_t *data,
                       size_t len) {
    sha256 c;
    uint8_t pad[64] = {0};
    unsigned i;
    if (key_len > sizeof pad) {
        sha256_init(&c);
        sha256_add(&c, key, key_len);
        sha256_sum(&c, pad);
    } else if (key_len > 0) {
        memcpy(pad, key, key_len);
    }
    for (i = 0; i < sizeof pad; i++) pad[i] ^= 0x36;
    sha256_init(&c);
    sha256_add(&c, pad, sizeof pad);
    sha256_add(&c, data, len);
    sha256_sum(&c, mac);
    for (i = 0; i < sizeof pad; i++) pad[i] ^= 0x36 ^ 0x5c;
    sha256_init(&c);
    sha256_add(&c, pad, sizeof pad);
    sha256_add(&c, mac, FERRY_MAC_LEN);
    sha256_sum(&c, mac);
}

/* Codec. */

enum { HEADER = 4, ONE_ID = HEADER + FERRY_ID_LEN, TWO_IDS = ONE_ID + FERRY_ID_LEN };

ferry_result ferry_decode(ferry_message *m, const uint8_t *pkt, size_t len) {
    size_t want = HEADER, ids = 0;
    memset(m, 0, sizeof *m);
    if (len < HEADER) return FERRY_ERR_SHORT;
    if (pkt[0] != 0xDA || pkt[1] != 0x72) return FERRY_ERR_SIGNATURE;
    if (pkt[2] != 0) return FERRY_ERR_VERSION;
    switch (pkt[3]) {
    case FERRY_BIND:
        if (len < 8) return FERRY_ERR_LENGTH;
        m->mode = pkt[4];
        m->number = (uint16_t)(pkt[5] | pkt[6] << 8);
        m->data_len = pkt[7];
        want = 8 + m->data_len + FERRY_MAC_LEN;
        if (len != want) return FERRY_ERR_LENGTH;
        m->data = pkt + 8;
        m->mac = pkt + 8 + m->data_len;
        break;
    case FERRY_BIND_RECEIVED:
        break;
    case FERRY_PING:
        ids = 1;
        want = ONE_ID + 2;
        if (len == want) m->number = (uint16_t)(pkt[20] | pkt[21] << 8);
        break;
    case FERRY_CONNECT_REQUEST:
        ids = 1;
        if (len < ONE_ID + 1) return FERRY_ERR_LENGTH;
        m->data_len = pkt[20];
        m->data = pkt + ONE_ID + 1;
        want = ONE_ID + 1 + m->data_len;
        break;
    case FERRY_REJECTED:
        if (len == HEADER) break;
        ids = 2;
        want = TWO_IDS;
        break;
    case FERRY_ACCEPTED:
    case FERRY_DISCONNECT:
        ids = 2;
        want = TWO_IDS;
        break;
    case FERRY_RELAY:
        ids = 2;
        if (len < FERRY_RELAY_HEADER) return FERRY_ERR_LENGTH;
        m->data_len = (size_t)pkt[36] << 8 | pkt[37];
        m->data = pkt + FERRY_RELAY_HEADER;
        want = FERRY_RELAY_HEADER + m->data_len;
        break;
    case FERRY_CLOSE:
        ids = 1;
        want = ONE_ID;
        break;
    case FERRY_ERROR:
        ids = 1;
        want = ONE_ID + 1;
        if (len == want) m->code = pkt[20];
        break;
    default:
        return FERRY_ERR_TYPE;
    }
    if (len != want) {
        memset(m, 0, sizeof *m); /* no length or pointer that leads out of the datagram */
        return FERRY_ERR_LENGTH;
    }
    m->type = (ferry_type)pkt[3];
    if (ids > 0) memcpy(m->id, pkt + HEADER, FERRY_ID_LEN);
    if (ids > 1) memcpy(m->to, pkt + ONE_ID, FERRY_ID_LEN);
    return FERRY_OK;
}

size_t ferry_encode(uint8_t *buf, size_t cap, const ferry_message *m, const uint8_t *key) {
    size_t n = HEADER, ids = 0;
    switch (m->type) {
    case FERRY_BIND:
        if (m->data_len > FERRY_MAX_DATA || key == NULL) return 0;
        n = 8 + m->data_len + FERRY_MAC_LEN;
        break;
    case FERRY_BIND_RECEIVED:
        break;
    case FERRY_PING:
        ids = 1;
        n = ONE_ID + 2;
        break;
    case FERRY_CONNECT_REQUEST:
        if (m->data_len > FERRY_MAX_DATA) return 0;
        ids = 1;
        n = ONE_ID + 1 + m->data_len;
        break;
    case FERRY_ACCEPTED:
    case FERRY_REJECTED:
    case FERRY_DISCONNECT:
        ids = 2;
        n = TWO_IDS;
        break;
    case FERRY_RELAY:
        if (m->data_len > UINT16_MAX) return 0;
        ids = 2;
        n = FERRY_RELAY_HEADER + m->data_len;
        break;
    case FERRY_CLOSE:
        ids = 1;
        n = ONE_ID;
        break;
    case FERRY_ERROR:
        ids = 1;
        n = ONE_ID + 1;
        break;
    default:
        return 0;
    }
    if (n > cap) return 0;
    /* The data first: it may lie in buf already. */
    if (m->type == FERRY_BIND && m->data_len > 0) memmove(buf + 8, m->data, m->data_len);
    if (m->type == FERRY_CONNECT_REQUEST && m->data_len > 0) memmove(buf + ONE_ID + 1, m->data, m->data_len);
    if (m->type == FERRY_RELAY && m->data_len > 0) memmove(buf + FERRY_RELAY_HEADER, m->data, m->data_len);
    buf[0] = 0xDA;
    buf[1] = 0x72;
    buf[2] = 0;
    buf[3] = (uint8_t)m->type;
    if (ids > 0) memcpy(buf + HEADER, m->id, FERRY_ID_LEN);
    if (ids > 1) memcpy(buf + ONE_ID, m->to, FERRY_ID_LEN);
    switch (m->type) {
    case FERRY_BIND:
        buf[4] = m->mode;
        buf[5] = (uint8_t)m->number;
        buf[6] = (uint8_t)(m->number >> 8);
        buf[7] = (uint8_t)m->data_len;
        ferry_hmac_sha256(buf + 8 + m->data_len, key, FERRY_KEY_LEN, buf, 8 + m->data_len);
        break;
    case FERRY_PING:
        buf[20] = (uint8_t)m->number;
        buf[21] = (uint8_t)(m->number >> 8);
        break;
    case FERRY_CONNECT_REQUEST:
        buf[20] = (uint8_t)m->data_len;
        break;
    case FERRY_RELAY:
        buf[36] = (uint8_t)(m->data_len >> 8);
        buf[37] = (uint8_t)m->data_len;
        break;
    case FERRY_ERROR:
        buf[20] = m->code;
        break;
    default:
        break;
    }
    return n;
}

size_t ferry_qos_encode(uint8_t *buf, size_t cap, const char *title, const ferry_qos *q) {
    size_t n = strlen(title), i;
    uint8_t *p;
    if (n > 254 || 14 + n > cap) return 0;
    buf[0] = 0x59;
    buf[1] = 0;
    buf[2] = (uint8_t)(n + 1);
    memcpy(buf + 3, title, n);
    p = buf + 3 + n;
    p[0] = q->sequence;
    p[1] = (uint8_t)q->id;
    p[2] = (uint8_t)(q->id >> 8);
    for (i = 0; i < 8; i++) p[3 + i] = (uint8_t)(q->time >> 8 * i);
    return 14 + n;
}

int ferry_qos_decode(ferry_qos *q, const uint8_t *pkt, size_t len) {
    size_t i;
    if (len != 13 || pkt[0] != 0x95) return 0;
    q->sequence = pkt[2];
    q->id = (uint16_t)(pkt[3] | pkt[4] << 8);
    q->time = 0;
    for (i = 0; i < 8; i++) q->time |= (uint64_t)pkt[5 + i] << 8 * i;
    return 1;
}

/* Session. Its rules are those of Go's client. */

enum { RUNNING, CLOSING, OVER };           /* ferry_session.state */
enum { PEER_FREE, PEER_OPEN, PEER_LEAVING }; /* ferry_peer.state */

enum {
    PERIOD = 1000, /* of PING, and between repetitions of a request */
    SILENCE = 3 * PERIOD,
    BIND_TIMEOUT = 10000,
    REBIND_TIMEOUT = 60000,
    CONNECT_TIMEOUT = 60000,
    RELINK_TIMEOUT = 5000,
    EVICT_AFTER = 60000,
    REBIND_PAUSE = 100, /* one lost endpoint earns an ERROR 3 for each datagram on its way */
    SENDS_PER_NONCE = 4, /* the relay takes an equal nonce from an equal endpoint only */
    MAX_REFUSED = 3 * SENDS_PER_NONCE,
    REFUSED_WITHIN = 30000,
    MAX_DISCONNECTS = 4,
    CLOSES = 3, /* CLOSE has no answer */
    CLOSE_PAUSE = 20
};

static void retry_start(ferry_retry *r, uint64_t now, uint64_t at) {
    r->active = 1;
    r->since = now;
    r->next = at;
    r->sends = 0;
}

/* The first repetitions come after a quarter and a half of the period. */
static void retry_sent(ferry_retry *r, uint64_t now) {
    r->next = now + ((uint64_t)PERIOD >> (r->sends < 2 ? 2 - r->sends : 0));
    r->sends++;
}

static int same(const uint8_t *a, const uint8_t *b) { return memcmp(a, b, FERRY_ID_LEN) == 0; }

static ferry_event event(ferry_event_type type, const uint8_t *peer, int code) {
    ferry_event e;
    memset(&e, 0, sizeof e);
    e.type = type;
    e.code = code;
    if (peer != NULL) memcpy(e.peer, peer, FERRY_ID_LEN);
    return e;
}

static ferry_event no_event(void) { return event(FERRY_EVENT_NONE, NULL, -1); }

static ferry_event end_session(ferry_session *s, ferry_event_type type, int code) {
    s->state = OVER;
    memset(s->peers, 0, sizeof s->peers);
    return event(type, NULL, code);
}

static int is_host(const ferry_session *s) { return s->ticket.host_data_len == 0; }

static size_t find_peer(const ferry_session *s, const uint8_t *id) {
    size_t i;
    for (i = 0; i < FERRY_MAX_PEERS; i++)
        if (s->peers[i].state != PEER_FREE && same(s->peers[i].id, id)) break;
    return i;
}

/* Returns the new peer, or NULL if there is no room. A peer that was silent for a minute makes room:
 * the relay does not report that its allocation has ended. */
static ferry_peer *add_peer(ferry_session *s, const uint8_t *id, uint64_t now) {
    ferry_peer *p = NULL;
    size_t i;
    if (s->has_left) return NULL; /* until ferry_check has reported the last one */
    for (i = 0; i < FERRY_MAX_PEERS && p == NULL; i++)
        if (s->peers[i].state == PEER_FREE) p = &s->peers[i];
    if (p == NULL) {
        p = &s->peers[0];
        for (i = 1; i < FERRY_MAX_PEERS; i++)
            if (s->peers[i].heard < p->heard) p = &s->peers[i];
        if (p->state != PEER_OPEN || now - p->heard < EVICT_AFTER) return NULL;
        memcpy(s->left, p->id, FERRY_ID_LEN);
        s->has_left = 1;
    }
    memset(p, 0, sizeof *p);
    memcpy(p->id, id, FERRY_ID_LEN);
    p->state = PEER_OPEN;
    p->heard = now;
    return p;
}

static int is_leaving(const ferry_session *s) {
    size_t i;
    for (i = 0; i < FERRY_MAX_PEERS; i++)
        if (s->peers[i].state == PEER_LEAVING) return 1;
    return 0;
}

/* Whether the next BIND needs another nonce: the first of a series, and of each few that have no answer,
 * since a NAT may change the endpoint meanwhile. */
static int needs_nonce(const ferry_session *s) { return s->bind.sends % SENDS_PER_NONCE == 0; }

/* Makes sure that the next BIND has a nonce of its own: 0 when there is none left. */
static int renew_nonce(ferry_session *s) {
    if (!s->nonce_used) return 1;
    if (s->nonce == UINT16_MAX) return 0;
    s->nonce++;
    s->nonce_used = 0;
    return 1;
}

/* Counts the BINDs of a series that goes on with another nonce. After ERROR 3 the next nonce is higher than each that
 * this session has used, so the relay takes it from whatever port a NAT has chosen, unless another session of this
 * allocation has bound with it. A lost datagram looks the same, so there must be many, and no such nonce that was
 * answered between them. A silence and a new socket use up nonces without an answer, and so count nothing. */
static void count_refused(ferry_session *s, uint64_t now) {
    if (!s->first_nonce || s->bind.sends == 0) return;
    s->first_nonce = 0;
    if (s->refused == 0 || now - s->refused_since > REFUSED_WITHIN) {
        s->refused = 0;
        s->refused_since = now;
    }
    s->refused += s->bind.sends;
}

/* Binds again with a new nonce, not before a time. A series that runs keeps its time-out. */
static void rebind(ferry_session *s, uint64_t now, uint64_t at) {
    s->first_nonce = 0;
    if (!s->bind.active) s->bind.since = now;
    s->bind.active = 1;
    s->bind.sends = 0;
    s->bind.next = at;
}

int ferry_init(ferry_session *s, const ferry_ticket *ticket, uint16_t nonce, uint64_t now) {
    memset(s, 0, sizeof *s);
    s->state = OVER;
    if (ticket->data_len == 0 || ticket->data_len > FERRY_MAX_DATA || ticket->host_data_len > FERRY_MAX_DATA) return 0;
    s->ticket = *ticket;
    s->state = RUNNING;
    s->nonce = nonce;
    s->heard = now;
    retry_start(&s->bind, now, now);
    return 1;
}

/* Ends a request for a link without one. A link that was to be made again is lost by that. */
static ferry_event fail_connect(ferry_session *s, ferry_event_type type, int code) {
    size_t i;
    if (!s->connect.active) return no_event();
    s->connect.active = 0;
    if (!s->relink) return event(type, NULL, code);
    s->relink = 0;
    i = find_peer(s, s->host);
    if (i < FERRY_MAX_PEERS) s->peers[i].state = PEER_FREE;
    return event(FERRY_EVENT_LINK_LOST, s->host, code);
}

static ferry_event on_accepted(ferry_session *s, const ferry_message *m, uint64_t now) {
    int again = s->relink && same(m->id, s->host), moved = s->relink && !again;
    size_t i = find_peer(s, m->id);
    if (!same(m->to, s->ticket.id) || !s->connect.active) return no_event();
    if (i < FERRY_MAX_PEERS && s->peers[i].state != PEER_OPEN) return no_event();
    if (moved) { /* The connection data leads to another host now. */
        size_t old = find_peer(s, s->host);
        if (old < FERRY_MAX_PEERS) s->peers[old].state = PEER_FREE;
    }
    if (i == FERRY_MAX_PEERS && add_peer(s, m->id, now) == NULL) return no_event();
    if (moved) {
        memcpy(s->left, s->host, FERRY_ID_LEN);
        s->has_left = 1;
    }
    s->connect.active = 0;
    s->relink = 0;
    memcpy(s->host, m->id, FERRY_ID_LEN);
    return again ? no_event() : event(FERRY_EVENT_CONNECTED, s->host, -1);
}

static ferry_event on_relay(ferry_session *s, const ferry_message *m, uint64_t now) {
    ferry_event e = event(FERRY_EVENT_MESSAGE, m->id, -1);
    size_t i = find_peer(s, m->id);
    if (i < FERRY_MAX_PEERS) {
        if (s->peers[i].state != PEER_OPEN) return no_event();
        s->peers[i].heard = now;
    } else {
        /* The host's first datagram may overtake ACCEPTED; a joiner has no other peer. */
        if (!is_host(s) && (!s->connect.active || s->relink)) return no_event();
        if (add_peer(s, m->id, now) == NULL) return no_event();
        e.first = 1;
    }
    e.data = m->data;
    e.data_len = m->data_len;
    return e;
}

/* A DISCONNECT of a peer, or the echo of an own one. An echo that comes twice must not end the link that
 * came after it. */
static ferry_event on_disconnect(ferry_session *s, const ferry_message *m) {
    int echo = same(m->id, s->ticket.id);
    const uint8_t *other = echo ? m->to : m->id;
    size_t i = find_peer(s, other);
    int was;
    if (i == FERRY_MAX_PEERS || (!echo && !same(m->to, s->ticket.id))) return no_event();
    was = s->peers[i].state;
    if (echo && was == PEER_OPEN) return no_event();
    s->peers[i].state = PEER_FREE;
    if (was != PEER_OPEN) return no_event();
    if (s->relink) s->connect.active = s->relink = 0;
    return event(FERRY_EVENT_PEER_LEFT, other, -1);
}

/* ERROR 4 speaks of the host if it answers CONNECT_REQUEST, of this player's allocation if BIND. */
static int is_connect_answer(const ferry_session *s) {
    return s->connect.active && s->connect_sent && (!s->bind.active || s->bind_at < s->connect_at);
}

static void on_mismatch(ferry_session *s, uint64_t now) {
    uint64_t age = now - s->bind_at;
    int first = !s->bind.active;
    if (!first) {
        /* What was sent before the BIND still earns errors for a round trip. */
        if (s->bind.sends == 0 || age < REBIND_PAUSE || age < 2 * (uint64_t)s->rtt) return;
        count_refused(s, now);
    }
    rebind(s, now, age < REBIND_PAUSE ? s->bind_at + REBIND_PAUSE : now);
    s->first_nonce = first;
}

static ferry_event on_error(ferry_session *s, const ferry_message *m, uint64_t now) {
    size_t i;
    if (m->code > FERRY_CODE_SELF_CONNECT) return no_event();
    if (m->code != FERRY_CODE_VERSION && !same(m->id, s->ticket.id)) return no_event();
    switch (m->code) {
    case FERRY_CODE_NOT_FOUND:
        if (is_connect_answer(s)) return fail_connect(s, FERRY_EVENT_REFUSED, m->code);
        return end_session(s, FERRY_EVENT_ENDED, m->code);
    case FERRY_CODE_TIMEOUT:
        return end_session(s, FERRY_EVENT_ENDED, m->code);
    case FERRY_CODE_MISMATCH:
        on_mismatch(s, now);
        return no_event();
    case FERRY_CODE_UNAUTHORIZED:
    case FERRY_CODE_SELF_CONNECT:
        return fail_connect(s, FERRY_EVENT_REFUSED, m->code);
    case FERRY_CODE_NOT_CONNECTED:
        if (is_host(s)) return event(FERRY_EVENT_ERROR, NULL, m->code); /* the ERROR does not name the peer */
        i = find_peer(s, s->host);
        if (s->connect.active || i == FERRY_MAX_PEERS || s->peers[i].state != PEER_OPEN) return no_event();
        retry_start(&s->connect, now, now);
        if (s->connect.next < s->connect_at + PERIOD) s->connect.next = s->connect_at + PERIOD;
        s->connect.sends = 2; /* equally far apart from the first on */
        s->connect_sent = 0;
        s->relink = 1;
        return event(FERRY_EVENT_ERROR, s->host, m->code);
    default:
        return event(FERRY_EVENT_ERROR, NULL, m->code);
    }
}

ferry_event ferry_receive(ferry_session *s, uint64_t now, const uint8_t *pkt, size_t len) {
    ferry_message m;
    ferry_result r = ferry_decode(&m, pkt, len);
    if (s->state != RUNNING) return no_event();
    if (r == FERRY_ERR_LENGTH && pkt[3] == FERRY_REJECTED) { /* its body is not published */
        m.type = FERRY_REJECTED;
        r = FERRY_OK;
    }
    if (r != FERRY_OK) return no_event();
    switch (m.type) {
    case FERRY_BIND_RECEIVED:
        s->heard = now;
        if (!s->bind.active || s->bind.sends == 0) return no_event();
        s->bind.active = 0;
        if (s->first_nonce) s->first_nonce = 0, s->refused = 0;
        s->bound = 1;
        s->silent = 0;
        s->ping_next = now;
        return event(FERRY_EVENT_BOUND, NULL, -1);
    case FERRY_PING:
        if (!same(m.id, s->ticket.id)) return no_event();
        s->heard = now;
        if (s->ping_open && m.number == s->ping_number) {
            s->ping_open = 0;
            s->rtt = now - s->ping_at > 0 ? (uint32_t)(now - s->ping_at) : 1;
        }
        return no_event();
    case FERRY_ACCEPTED:
        s->heard = now;
        return on_accepted(s, &m, now);
    case FERRY_REJECTED:
        s->heard = now;
        return fail_connect(s, FERRY_EVENT_REJECTED, -1);
    case FERRY_DISCONNECT:
        s->heard = now;
        return on_disconnect(s, &m);
    case FERRY_RELAY:
        if (!same(m.to, s->ticket.id)) return no_event();
        s->heard = now;
        return on_relay(s, &m, now);
    case FERRY_ERROR:
        s->heard = now;
        return on_error(s, &m, now);
    default:
        return no_event();
    }
}

ferry_event ferry_check(ferry_session *s, uint64_t now) {
    if (s->state != RUNNING) return no_event();
    if (s->has_left) {
        s->has_left = 0;
        return event(FERRY_EVENT_PEER_LEFT, s->left, -1);
    }
    if (!s->bind.active && now - s->heard >= SILENCE) {
        rebind(s, now, now);
        s->silent = 1;
    }
    if (s->bind.active && now - s->bind.since >= (s->bound ? REBIND_TIMEOUT : BIND_TIMEOUT))
        return end_session(s, FERRY_EVENT_BIND_TIMEOUT, -1);
    if (s->bind.active && now >= s->bind.next && needs_nonce(s)) count_refused(s, now);
    if (s->refused >= MAX_REFUSED) return end_session(s, FERRY_EVENT_IN_USE, -1);
    if (s->bind.active && now >= s->bind.next && needs_nonce(s) && s->nonce_used && s->nonce == UINT16_MAX)
        return end_session(s, FERRY_EVENT_NONCE_EXHAUSTED, -1);
    if (s->silent) {
        s->silent = 0;
        return event(FERRY_EVENT_SILENT, NULL, -1);
    }
    if (s->connect.active && s->bind.active) s->connect.since = now; /* the relay's silence says nothing about it */
    if (s->connect.active && now - s->connect.since >= (s->relink ? RELINK_TIMEOUT : CONNECT_TIMEOUT))
        return fail_connect(s, FERRY_EVENT_CONNECT_TIMEOUT, -1);
    return no_event();
}

static int is_due(const ferry_retry *r, uint64_t now) { return r->active && now >= r->next; }

/* C++ has no {0} for a struct whose first member is an enumeration. */
static ferry_message empty_message(ferry_type type) {
    ferry_message m;
    memset(&m, 0, sizeof m);
    m.type = type;
    return m;
}

static size_t write_bind(ferry_session *s, uint64_t now, uint8_t *buf) {
    ferry_message m = empty_message(FERRY_BIND);
    if (needs_nonce(s)) {
        if (!renew_nonce(s)) return 0; /* ferry_check ends the session. */
        if (s->bind.sends > 0) s->silent = 1;
    }
    s->nonce_used = 1;
    s->bind_at = now;
    retry_sent(&s->bind, now);
    m.number = s->nonce;
    m.data = s->ticket.data;
    m.data_len = s->ticket.data_len;
    return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, s->ticket.key);
}

static size_t write_disconnect(const ferry_session *s, const uint8_t *peer, uint8_t *buf) {
    ferry_message m = empty_message(FERRY_DISCONNECT);
    memcpy(m.id, s->ticket.id, FERRY_ID_LEN);
    memcpy(m.to, peer, FERRY_ID_LEN);
    return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, NULL);
}

static size_t write_last(ferry_session *s, uint64_t now, uint8_t *buf) {
    ferry_message m = empty_message(FERRY_CLOSE);
    size_t i;
    if (now < s->close_at) return 0;
    for (i = 0; i < FERRY_MAX_PEERS; i++)
        if (s->peers[i].state != PEER_FREE) {
            s->peers[i].state = PEER_FREE;
            return write_disconnect(s, s->peers[i].id, buf);
        }
    s->close_at = now + CLOSE_PAUSE;
    if (++s->closes == CLOSES) s->state = OVER;
    memcpy(m.id, s->ticket.id, FERRY_ID_LEN);
    return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, NULL);
}

size_t ferry_next(ferry_session *s, uint64_t now, uint8_t *buf) {
    ferry_message m = empty_message(FERRY_PING);
    size_t i;
    if (s->state == CLOSING) return write_last(s, now, buf);
    if (s->state != RUNNING) return 0;
    if (s->bind.active) return is_due(&s->bind, now) ? write_bind(s, now, buf) : 0;
    memcpy(m.id, s->ticket.id, FERRY_ID_LEN);
    for (i = 0; i < FERRY_MAX_PEERS; i++) {
        ferry_peer *p = &s->peers[i];
        if (p->state != PEER_LEAVING || !is_due(&p->leave, now)) continue;
        if (p->leave.sends == MAX_DISCONNECTS) {
            p->state = PEER_FREE;
            continue;
        }
        retry_sent(&p->leave, now);
        return write_disconnect(s, p->id, buf);
    }
    /* A DISCONNECT that is still repeated would end the new link, too. */
    if (is_due(&s->connect, now) && !is_leaving(s)) {
        retry_sent(&s->connect, now);
        s->connect_at = now;
        s->connect_sent = 1;
        m.type = FERRY_CONNECT_REQUEST;
        m.data = s->ticket.host_data;
        m.data_len = s->ticket.host_data_len;
        return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, NULL);
    }
    if (now < s->ping_next) return 0;
    s->ping_next = now + PERIOD;
    s->ping_at = now;
    s->ping_open = 1;
    m.number = ++s->ping_number;
    return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, NULL);
}

static void sooner(uint64_t *wait, uint64_t now, uint64_t at) {
    uint64_t d = at > now ? at - now : 0;
    if (d < *wait) *wait = d;
}

int ferry_wait(const ferry_session *s, uint64_t now) {
    uint64_t wait = PERIOD;
    size_t i;
    if (s->state == CLOSING) sooner(&wait, now, s->close_at);
    if (s->state != RUNNING) return (int)wait;
    if (s->has_left || s->silent) return 0;
    if (s->bind.active) {
        sooner(&wait, now, s->bind.next);
        sooner(&wait, now, s->bind.since + (s->bound ? REBIND_TIMEOUT : BIND_TIMEOUT));
        return (int)wait;
    }
    sooner(&wait, now, s->ping_next);
    sooner(&wait, now, s->heard + SILENCE);
    if (s->connect.active) {
        sooner(&wait, now, s->connect.since + (s->relink ? RELINK_TIMEOUT : CONNECT_TIMEOUT));
        if (!is_leaving(s)) sooner(&wait, now, s->connect.next);
    }
    for (i = 0; i < FERRY_MAX_PEERS; i++)
        if (s->peers[i].state == PEER_LEAVING) sooner(&wait, now, s->peers[i].leave.next);
    return (int)wait;
}

int ferry_connect(ferry_session *s, uint64_t now) {
    size_t i = find_peer(s, s->host);
    if (s->state != RUNNING || is_host(s) || s->connect.active) return 0;
    if (i < FERRY_MAX_PEERS && s->peers[i].state == PEER_OPEN) return 0;
    retry_start(&s->connect, now, now);
    s->connect_sent = 0;
    s->relink = 0;
    return 1;
}

size_t ferry_relay(ferry_session *s, const uint8_t *peer, const void *content, size_t len, uint8_t *buf) {
    ferry_message m = empty_message(FERRY_RELAY);
    if (len > FERRY_MAX_CONTENT || !ferry_is_linked(s, peer)) return 0;
    memcpy(m.id, s->ticket.id, FERRY_ID_LEN);
    memcpy(m.to, peer, FERRY_ID_LEN);
    m.data = (const uint8_t *)content;
    m.data_len = len;
    return ferry_encode(buf, FERRY_MAX_DATAGRAM, &m, NULL);
}

int ferry_disconnect(ferry_session *s, const uint8_t *peer, uint64_t now) {
    ferry_peer *p;
    if (!ferry_is_linked(s, peer)) return 0;
    if (s->relink) s->connect.active = s->relink = 0;
    p = &s->peers[find_peer(s, peer)];
    p->state = PEER_LEAVING;
    retry_start(&p->leave, now, now);
    return 1;
}

void ferry_roam(ferry_session *s, uint64_t now) {
    s->silent = 0;
    if (s->state == RUNNING) rebind(s, now, now);
}

void ferry_close(ferry_session *s, uint64_t now) {
    if (s->state != RUNNING) return;
    s->state = s->nonce_used ? CLOSING : OVER;
    s->close_at = now;
}

int ferry_is_over(const ferry_session *s) { return s->state == OVER; }

int ferry_is_linked(const ferry_session *s, const uint8_t *peer) {
    size_t i = find_peer(s, peer);
    return s->state == RUNNING && i < FERRY_MAX_PEERS && s->peers[i].state == PEER_OPEN;
}

uint32_t ferry_rtt(const ferry_session *s) { return s->rtt; }
