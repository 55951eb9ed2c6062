/* ferry_relay: a client of the relay protocol, without I/O, threads, a clock or allocation.
 *
 * A session belongs to its caller, who owns the socket, too, and does three things:
 *
 *   - give each datagram of the relay to ferry_receive, which returns what it means;
 *   - call ferry_check for the events that time brings;
 *   - send what ferry_next writes, until it returns 0; ferry_wait says when there is more.
 *
 * Times are milliseconds of any clock that does not go back. Datagrams come from the relay's
 * address only: connect the UDP socket, or compare. A session is used by one thread at a time.
 * The layouts of all messages are in proto/doc.go.
 */
#ifndef FERRY_RELAY_H
#define FERRY_RELAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How many peers a host has at most: a bound of the caller, at compile time. */
#ifndef FERRY_MAX_PEERS
#define FERRY_MAX_PEERS 32
#endif

#define FERRY_ID_LEN 16
#define FERRY_KEY_LEN 64
#define FERRY_MAC_LEN 32
#define FERRY_MAX_DATA 255      /* connection data */
#define FERRY_MAX_DATAGRAM 1472 /* of a session; a buffer of this size is always enough */
#define FERRY_RELAY_HEADER 38   /* bytes of RELAY before its content */

/* How many bytes of content ferry_relay takes: what a relay forwards by default. With another max_content of
 * your relay, up to FERRY_MAX_DATAGRAM - FERRY_RELAY_HEADER, define the same here: a relay drops larger content. */
#ifndef FERRY_MAX_CONTENT
#define FERRY_MAX_CONTENT 1400
#endif

/* Codec. */

typedef enum {
    FERRY_BIND = 0,
    FERRY_BIND_RECEIVED = 1,
    FERRY_PING = 2,
    FERRY_CONNECT_REQUEST = 3,
    FERRY_ACCEPTED = 6,
    FERRY_REJECTED = 8,
    FERRY_DISCONNECT = 9,
    FERRY_RELAY = 10,
    FERRY_CLOSE = 11,
    FERRY_ERROR = 12
} ferry_type;

typedef enum {
    FERRY_OK = 0,
    FERRY_ERR_SHORT = -1,
    FERRY_ERR_SIGNATURE = -2,
    FERRY_ERR_VERSION = -3,
    FERRY_ERR_TYPE = -4,
    FERRY_ERR_LENGTH = -5
} ferry_result;

typedef struct {
    ferry_type type;
    uint8_t id[FERRY_ID_LEN]; /* the sender's or the own one; From of messages that have To */
    uint8_t to[FERRY_ID_LEN];
    uint16_t number;          /* nonce of BIND, number of PING */
    uint8_t mode;             /* accept mode of BIND: 0 */
    uint8_t code;             /* of ERROR */
    const uint8_t *data;      /* connection data or content; points into the datagram after ferry_decode */
    size_t data_len;
    const uint8_t *mac;       /* of BIND; set by ferry_decode */
} ferry_message;

/* Decodes a datagram, whose size has to be exact. A REJECTED may have no ids, which are zero then. */
ferry_result ferry_decode(ferry_message *m, const uint8_t *pkt, size_t len);

/* Writes a message and returns its size, or 0 if it does not fit. BIND needs the key. */
size_t ferry_encode(uint8_t *buf, size_t cap, const ferry_message *m, const uint8_t *key);

/* A QoS probe, which measures the way to a relay: ferry_qos_decode reads the answer, and returns 0
 * if it is none. */
typedef struct {
    uint8_t sequence;
    uint16_t id;
    uint64_t time;
} ferry_qos;

size_t ferry_qos_encode(uint8_t *buf, size_t cap, const char *title, const ferry_qos *q);
int ferry_qos_decode(ferry_qos *q, const uint8_t *pkt, size_t len);

void ferry_hmac_sha256(uint8_t mac[FERRY_MAC_LEN], const uint8_t *key, size_t key_len,
                       const uint8_t *data, size_t len);

/* Session. */

/* The codes of ERROR. */
typedef enum {
    FERRY_CODE_VERSION = 0,       /* the relay does not speak this version */
    FERRY_CODE_TIMEOUT = 1,       /* the allocation ended because it was idle */
    FERRY_CODE_UNAUTHORIZED = 2,  /* the connection data is not for this player */
    FERRY_CODE_MISMATCH = 3,      /* this endpoint is not bound; the session binds again by itself */
    FERRY_CODE_NOT_FOUND = 4,     /* the allocation, or the host's, does not exist any more */
    FERRY_CODE_NOT_CONNECTED = 5, /* there is no link; a joiner connects again by itself */
    FERRY_CODE_SELF_CONNECT = 6   /* an allocation asked for a link to itself */
} ferry_code;

typedef enum {
    FERRY_EVENT_NONE,
    FERRY_EVENT_BOUND,        /* the relay has confirmed a BIND: the first, or one after a silence or a roam */
    FERRY_EVENT_SILENT,       /* the relay does not answer; the session binds again. If the allocation has
                                 another endpoint, open a socket to it and call ferry_roam */
    FERRY_EVENT_CONNECTED,    /* the joiner has a link to peer, its host */
    FERRY_EVENT_MESSAGE,      /* data of peer; first is set for a peer that the host did not know */
    FERRY_EVENT_PEER_LEFT,    /* peer has disconnected, or was silent for a minute and made room */
    FERRY_EVENT_LINK_LOST,    /* the link to peer, the host, has gone and cannot be made again; code says why */
    FERRY_EVENT_REJECTED,     /* the relay has no room for the joiner's link */
    FERRY_EVENT_REFUSED,      /* the link was refused: code 2, 4 (the host has gone) or 6 */
    FERRY_EVENT_CONNECT_TIMEOUT,
    FERRY_EVENT_ERROR,        /* another ERROR, with code; nothing has to be done */
    FERRY_EVENT_ENDED,        /* the allocation has ended: code 1 or 4. The session is over, as after the next three */
    FERRY_EVENT_BIND_TIMEOUT,
    FERRY_EVENT_NONCE_EXHAUSTED,
    FERRY_EVENT_IN_USE        /* another session uses this allocation, such as another copy of the game */
} ferry_event_type;

typedef struct {
    ferry_event_type type;
    uint8_t peer[FERRY_ID_LEN];
    int first;           /* of MESSAGE */
    int code;            /* a ferry_code, or -1 */
    const uint8_t *data; /* of MESSAGE: points into the datagram */
    size_t data_len;
} ferry_event;

/* What the Allocations API returned. The session copies it. */
typedef struct {
    uint8_t id[FERRY_ID_LEN];
    uint8_t key[FERRY_KEY_LEN];
    uint8_t data[FERRY_MAX_DATA]; /* the player's own connection data */
    size_t data_len;
    uint8_t host_data[FERRY_MAX_DATA];
    size_t host_data_len; /* 0: this player is the host */
} ferry_ticket;

/* The rest of this part is private to ferry_relay.c, and here so that the caller can hold a session. */

typedef struct {
    int active;
    uint64_t since, next;
    unsigned sends;
} ferry_retry;

typedef struct {
    uint8_t id[FERRY_ID_LEN];
    int state;
    uint64_t heard;
    ferry_retry leave;
} ferry_peer;

typedef struct {
    ferry_ticket ticket;
    int state, bound, silent, relink, connect_sent, has_left;
    unsigned closes;
    uint16_t nonce;
    int nonce_used, first_nonce;
    unsigned refused;
    uint64_t refused_since, bind_at, connect_at, heard, close_at;
    ferry_retry bind, connect;
    uint64_t ping_next, ping_at;
    uint16_t ping_number;
    int ping_open;
    uint32_t rtt;
    uint8_t host[FERRY_ID_LEN], left[FERRY_ID_LEN];
    ferry_peer peers[FERRY_MAX_PEERS];
} ferry_session;

/* Begins to bind. nonce is 0 for a new allocation; a program that starts again with one that it has
 * bound before gives a higher one than before. Returns 0 if a length in the ticket is impossible. */
int ferry_init(ferry_session *s, const ferry_ticket *ticket, uint16_t nonce, uint64_t now);

/* Takes one datagram of the relay. After ferry_roam, datagrams of the old socket are not given. */
ferry_event ferry_receive(ferry_session *s, uint64_t now, const uint8_t *pkt, size_t len);

/* Returns what has happened by the time: call it until there is no event. */
ferry_event ferry_check(ferry_session *s, uint64_t now);

/* Writes the next datagram that is due, and returns its size, or 0 if there is none.
 * buf has FERRY_MAX_DATAGRAM bytes. */
size_t ferry_next(ferry_session *s, uint64_t now, uint8_t *buf);

/* Returns the milliseconds until ferry_check or ferry_next has something to do, at most 1000. */
int ferry_wait(const ferry_session *s, uint64_t now);

/* A joiner asks for the link to its host, as soon as it is bound, until one of CONNECTED, REJECTED,
 * REFUSED and CONNECT_TIMEOUT. Returns 0 for a host, or while there is a link or a request. */
int ferry_connect(ferry_session *s, uint64_t now);

/* Writes a RELAY with content for a peer into buf, and returns its size. 0: the peer has no link, or the
 * content is longer than FERRY_MAX_CONTENT. The content may lie at buf + FERRY_RELAY_HEADER already. */
size_t ferry_relay(ferry_session *s, const uint8_t *peer, const void *content, size_t len, uint8_t *buf);

/* Ends one link; ferry_next repeats DISCONNECT until the relay confirms. Returns 0 if there is none. */
int ferry_disconnect(ferry_session *s, const uint8_t *peer, uint64_t now);

/* Tells the session that its datagrams leave from a new socket from now on, or for another endpoint. */
void ferry_roam(ferry_session *s, uint64_t now);

/* Ends all links and the allocation: ferry_next writes the last datagrams, within 40 ms. */
void ferry_close(ferry_session *s, uint64_t now);

/* Whether the session has ended and sends nothing more. */
int ferry_is_over(const ferry_session *s);

/* Whether peer has a link, as far as this side knows. */
int ferry_is_linked(const ferry_session *s, const uint8_t *peer);

/* The round trip of the newest PING, in ms; 0 before the first. */
uint32_t ferry_rtt(const ferry_session *s);

#ifdef __cplusplus
}
#endif

#endif
