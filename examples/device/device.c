/* A gridfed device in C, from hello to receipt, written from edge_sdk/protocol/PROTOCOL.md alone.
 *
 * It connects, sends a hello, fetches the common model, answers one round with an update, and exits
 * when the aggregator's receipt confirms that the update is committed. Its update is one step of
 * weight decay: replace `train` with your own training. Section numbers (§) are those of PROTOCOL.md.
 * README.md in this folder explains how to build and run the program, and lists its limits.
 *
 *     cc -O2 -Wall -Wextra -o device device.c -lmosquitto -lcrypto -lm
 *     ./device keygen STATE                     # prints the public key, to enrol
 *     ./device run STATE HOST PORT FLEET ID ROOT_PUBLIC_KEY_HEX
 *     ./device sum STATE HOST PORT FLEET ID ROOT_PUBLIC_KEY_HEX
 *
 * `sum` sends the masked numbers of the newest whole period, which are in STATE/numbers, instead of an update.
 *
 * STATE is a folder that only this device uses. State that must survive a power cut is on disk before
 * a byte of it is sent (§8, §9). The exit status is 0 after a receipt ACCEPTED, 2 after another
 * receipt, 4 if the aggregator excludes this device, 1 after any other failure.
 */
#include <fcntl.h>
#include <math.h>
#include <mosquitto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { BODY_MAX = 8 << 20, PAYLOAD_MAX = 65536, HEADER_MAX = 4096, FIELDS_MAX = 40 }; /* §13 */
enum { KEYS_MAX = 8, CHUNKS_MAX = 256, CHUNK = 32768, AT_ONCE = 20 };

typedef struct { uint8_t *p; size_t n, cap; } Buf;   /* bytes being written */
typedef struct { const uint8_t *p; size_t n; } View; /* bytes being read; p is NULL after an error */

static void die(const char *what) { fprintf(stderr, "device: %s\n", what); exit(1); }

/* ---- msgpack, canonical form (§4) ------------------------------------------------------------- */

static void put(Buf *b, const void *data, size_t n) {
  if (b->n + n > b->cap && !(b->p = realloc(b->p, b->cap = 2 * (b->n + n)))) die("out of memory");
  if (n) memcpy(b->p + b->n, data, n);
  b->n += n;
}
static void put_head(Buf *b, int byte, uint64_t value, int size) {
  uint8_t raw[9] = {(uint8_t)byte};
  for (int i = 0; i < size; i++) raw[1 + i] = (uint8_t)(value >> (8 * (size - 1 - i)));
  put(b, raw, 1 + (size_t)size);
}
static void put_uint(Buf *b, uint64_t v) {
  if (v < 128) put_head(b, (int)v, 0, 0);
  else if (v < 256) put_head(b, 0xcc, v, 1);
  else if (v < 65536) put_head(b, 0xcd, v, 2);
  else if (v >> 32 == 0) put_head(b, 0xce, v, 4);
  else put_head(b, 0xcf, v, 8);
}
static void put_str(Buf *b, const char *s) { /* shorter than 256 bytes, as all strings of the protocol */
  size_t n = strlen(s);
  if (n < 32) put_head(b, 0xa0 | (int)n, 0, 0);
  else put_head(b, 0xd9, n, 1);
  put(b, s, n);
}
static void put_bin(Buf *b, const void *data, size_t n) {
  if (n < 256) put_head(b, 0xc4, n, 1);
  else if (n < 65536) put_head(b, 0xc5, n, 2);
  else put_head(b, 0xc6, n, 4);
  put(b, data, n);
}
static void key_uint(Buf *b, const char *key, uint64_t v) { put_str(b, key), put_uint(b, v); }
static void key_str(Buf *b, const char *key, const char *s) { put_str(b, key), put_str(b, s); }
static void key_bin(Buf *b, const char *key, const void *p, size_t n) { put_str(b, key), put_bin(b, p, n); }
static void put_body(Buf *b, int keys) { put_head(b, 0x92, 0, 0), put_head(b, 0x80 | keys, 0, 0); } /* keys must ascend */
static uint64_t take_be(View *v, size_t size) {
  uint64_t value = 0;
  if (!v->p || v->n < size) { v->p = NULL; return 0; }
  for (size_t i = 0; i < size; i++) value = value << 8 | v->p[i];
  v->p += size, v->n -= size;
  return value;
}
static View take_bytes(View *v, uint64_t n) {
  View out = {NULL, 0};
  if (v->p && n <= v->n) { out.p = v->p, out.n = n; v->p += n, v->n -= n; } else v->p = NULL;
  return out;
}
/* Read any value that the protocol allows. A number is stored in *number (a float as its bits). The
 * result is the bytes of a str or bin, or all bytes of an array or map. Containers nest three deep. */
static View take(View *v, uint64_t *number, int depth) {
  const uint8_t *start = v->p;
  uint64_t t = take_be(v, 1), count = 0, n;
  View none = {NULL, 0}, out;
  if (t < 0x80) { *number = t; return none; }
  if (t >= 0xcc && t <= 0xcf) { *number = take_be(v, (size_t)1 << (t - 0xcc)); return none; }
  if (t == 0xc2 || t == 0xc3) { *number = t & 1; return none; }
  if (t == 0xcb) { *number = take_be(v, 8); return none; }
  if (t >= 0xa0 && t < 0xc0) return take_bytes(v, t & 31);
  if (t == 0xd9 || t == 0xc4) { n = take_be(v, 1); return take_bytes(v, n); }
  if (t == 0xc5) { n = take_be(v, 2); return take_bytes(v, n); }
  if (t == 0xc6) { n = take_be(v, 4); return take_bytes(v, n); }
  if (t >= 0x90 && t < 0xa0) count = t & 15;
  else if (t >= 0x80 && t < 0x90) count = 2 * (t & 15);
  else if (t == 0xdc) count = take_be(v, 2);
  else if (t == 0xde) count = 2 * take_be(v, 2);
  else v->p = NULL;
  if (depth > 2) v->p = NULL;
  for (uint64_t i = 0; i < count && v->p; i++) take(v, number, depth + 1);
  out.p = v->p ? start : NULL, out.n = v->p ? (size_t)(v->p - start) : 0;
  return out;
}
static char type_of(uint8_t t) { /* int, str, bin, array, map or float; 0 for other types */
  if (t < 0x80 || (t >= 0xcc && t <= 0xcf)) return 'i';
  if ((t >= 0xa0 && t < 0xc0) || t == 0xd9) return 's';
  if (t >= 0xc4 && t <= 0xc6) return 'b';
  if ((t >= 0x90 && t < 0xa0) || t == 0xdc) return 'a';
  if ((t >= 0x80 && t < 0x90) || t == 0xde) return 'm';
  return t == 0xcb ? 'f' : 0;
}
static View take_as(View *v, char type, uint64_t *number, int depth) {
  if (!v->p || !v->n || type_of(*v->p) != type) { v->p = NULL; return (View){NULL, 0}; }
  return take(v, number, depth);
}
static uint64_t array_size(View *v, int is_map) {
  uint64_t t = take_be(v, 1), small = is_map ? 0x80u : 0x90u;
  if (t >= small && t < small + 16) return t - small;
  if (t == (is_map ? 0xdeu : 0xdcu)) return take_be(v, 2);
  v->p = NULL;
  return 0;
}
static int same(View v, const void *data, size_t n) { return v.p && v.n == n && !memcmp(v.p, data, n); }

/* Return 0 for a header that a decoder must refuse: it is too long, or has too many keys, a key twice or
 * a critical key (first letter A to Z) that this device does not know. */
static int is_header(View h) {
  View names[FIELDS_MAX];
  uint64_t ignored, count = h.n <= HEADER_MAX ? array_size(&h, 1) : FIELDS_MAX + 1;
  for (uint64_t i = 0; i < count && count <= FIELDS_MAX; i++) {
    names[i] = take_as(&h, 's', &ignored, 1), take(&h, &ignored, 1);
    if (!h.p || !names[i].n || (names[i].p[0] >= 'A' && names[i].p[0] <= 'Z')) return 0;
    for (uint64_t k = 0; k < i; k++) if (same(names[i], names[k].p, names[k].n)) return 0;
  }
  return h.p && count <= FIELDS_MAX;
}
static int misfit; /* set if a key is missing or has another type; the reader of a message checks it */
static View field(View header, const char *key, char type, uint64_t *number) {
  uint64_t count = array_size(&header, 1), ignored = 0;
  View none = {NULL, 0};
  for (uint64_t i = 0; i < count && header.p; i++) {
    if (same(take(&header, &ignored, 1), key, strlen(key))) {
      View value = take_as(&header, type, number, 1);
      misfit |= !header.p;
      return header.p ? value : none;
    }
    take(&header, &ignored, 1);
  }
  misfit = 1;
  return none;
}
static uint64_t number_of(View header, const char *key) { /* at most 2^53-1 (§13) */
  uint64_t n = 0;
  field(header, key, 'i', &n), misfit |= n >> 53 != 0;
  return n;
}
static double float_of(View header, const char *key) {
  uint64_t bits = 0;
  double value;
  field(header, key, 'f', &bits), memcpy(&value, &bits, 8);
  return value;
}
static View bytes_of(View header, const char *key, size_t size) { /* a bin; size 0 allows any size */
  uint64_t ignored;
  View v = field(header, key, 'b', &ignored);
  misfit |= size && v.n != size;
  return v;
}
static int text_is(View header, const char *key, const char *text) {
  uint64_t ignored;
  return same(field(header, key, 's', &ignored), text, strlen(text));
}

/* ---- keys, digests, envelopes (§3) ------------------------------------------------------------ */

static EVP_PKEY *own_key;
static uint8_t own_public[32], root[32], sign_keys[KEYS_MAX][32];
static size_t sign_count;
static const char *folder, *fleet, *id;

static void sha256(const void *data, size_t n, uint8_t out[32]) {
  if (!EVP_Digest(data, n, out, NULL, EVP_sha256(), NULL)) die("SHA-256 failed");
}
static void signed_bytes(Buf *b, const char *kind, const char *sender, const char *to, const uint8_t digest[32]) {
  const char *parts[] = {fleet, kind, sender, to};
  put(b, "gridfed/1/sig", 14); /* includes the final 0 */
  for (int i = 0; i < 4; i++) { uint8_t n = (uint8_t)strlen(parts[i]); put(b, &n, 1); put(b, parts[i], n); }
  put(b, digest, 32);
}
static void proof_of(const char *kind, const uint8_t digest[32], uint8_t proof[72]) {
  Buf data = {0};
  uint8_t hash[32];
  size_t n = 64;
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  signed_bytes(&data, kind, id, "_agg", digest);
  sha256(own_public, 32, hash), memcpy(proof, hash, 8);
  if (!context || EVP_DigestSignInit(context, NULL, NULL, NULL, own_key) <= 0 ||
      EVP_DigestSign(context, proof + 8, &n, data.p, data.n) <= 0) die("signing failed");
  EVP_MD_CTX_free(context), free(data.p);
}
static int is_proved(const uint8_t key[32], View proof, const char *kind, const char *sender, const char *to, const uint8_t digest[32]) {
  uint8_t hash[32];
  Buf data = {0};
  EVP_PKEY *public = EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key, 32);
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  signed_bytes(&data, kind, sender, to, digest);
  sha256(key, 32, hash);
  int ok = proof.n == 72 && !memcmp(proof.p, hash, 8) && public && context &&
           EVP_DigestVerifyInit(context, NULL, NULL, NULL, public) > 0 &&
           EVP_DigestVerify(context, proof.p + 8, 64, data.p, data.n) > 0;
  EVP_MD_CTX_free(context), EVP_PKEY_free(public), free(data.p);
  return ok;
}
static Buf envelope(const char *kind, Buf body, const uint8_t proof[72]) {
  Buf out = {0};
  put_head(&out, 0x95, 0, 0), put_uint(&out, 1), put_str(&out, kind), put_str(&out, id);
  put_bin(&out, body.p, body.n), put_bin(&out, proof, 72);
  return out;
}

/* ---- persistent state (§8, §9) ---------------------------------------------------------------- */

static struct { /* `confirmed`: life of the last welcome, 0 before. `run`, `round`: of the last update */
  uint64_t life, confirmed, spent, seq, conn, keys, bundle, run, round;
  uint64_t sums, sum_until, sum_due;         /* serial of the contracts; end of the last period, and until when it counts */
} at;

static void save(const char *name, const void *data, size_t n) { /* atomic: the old or the new content */
  char path[512], beside[520];
  snprintf(path, sizeof path, "%s/%s", folder, name), snprintf(beside, sizeof beside, "%s.new", path);
  int file = open(beside, O_WRONLY | O_CREAT | O_TRUNC, 0600), dir = open(folder, O_RDONLY);
  if (file < 0 || write(file, data, n) != (ssize_t)n || fsync(file) || close(file) || rename(beside, path) || fsync(dir))
    die("cannot write the state folder");
  close(dir);
}
static long load(const char *name, void *data, size_t most) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  FILE *file = fopen(path, "rb");
  if (!file) return -1;
  size_t n = fread(data, 1, most, file);
  fclose(file);
  return (long)n;
}
static void save_numbers(void) { save("state", &at, sizeof at); }

/* ---- timers and quota --------------------------------------------------------------------------- */

static int is_ready, tries, leaving;         /* `leaving`: 1 + the exit status */
static double due, not_before, day_end, time_received, chunk_at, leave_by; /* s of the monotonic clock; due 0: no step is planned */
static uint64_t welcome_time, quota, used, sent, acknowledged;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
static double uniform(double most) {
  uint32_t draw;
  RAND_bytes((uint8_t *)&draw, sizeof draw);
  return most * draw / 4294967296.0;
}
static uint64_t server_time(void) { return welcome_time ? welcome_time + (uint64_t)((now() - time_received) * 1000) : 0; }
static void schedule_step(void) { if (!due) due = now(); } /* keep a running timer */
static void wait_for_answer(void) { /* uniform in 0…x (§8), plus 1 s: one `have` a second is answered (§13) */
  double x = 10.0 * (1 << (tries < 7 ? tries : 7));
  due = now() + 1 + uniform(x > 900 ? 900 : x), tries++;
}
static int is_spent(void) {  /* the daily quota is used; a day begins with the process */
  if (now() >= day_end) used = 0, day_end = now() + 86400;
  return quota && used >= quota;
}
static int must_wait(void) { /* the quota is used, or a refusal's `wait` is not over */
  if (is_spent() && not_before < day_end) not_before = day_end;
  if (now() < not_before) { due = not_before; return 1; }
  return 0;
}

/* ---- messages ----------------------------------------------------------------------------------- */

static struct mosquitto *link_;
static Buf hello, outbox;                    /* the pending hello; the body of the pending update */
static uint8_t hello_ref[32], out_digest[32], out_proof[72], sent_chunks[CHUNKS_MAX];
static uint64_t out_life, out_seq, inline_limit, sign_from[KEYS_MAX], sign_until[KEYS_MAX];
static View out;                             /* header of `outbox` */
static char chunk_topic[80];
static struct { uint64_t serial, run, round, version, size, chunk, until; uint8_t digest[32], spec[16]; double start; } offered;
static struct { uint64_t run; uint8_t spec[16]; } bundle;
static uint8_t *model, arrived[CHUNKS_MAX], got_bits[CHUNKS_MAX / 8];
static int has_model, fresh, is_online;

static void publish(const char *topic_kind, Buf payload, bool is_status) {
  char topic[256];
  snprintf(topic, sizeof topic, "gf/1/%s/%s/%s%s", fleet, id, is_status ? "" : "up/", topic_kind);
  if (payload.n > PAYLOAD_MAX) die("a payload is too large");
  used += payload.n;
  sent += !mosquitto_publish(link_, NULL, topic, (int)payload.n, payload.p, 1, is_status);
}
static Buf sealed(const char *kind, Buf body) {
  uint8_t digest[32], proof[72];
  sha256(body.p, body.n, digest), proof_of(kind, digest, proof);
  return envelope(kind, body, proof);
}
static void send_message(const char *kind, Buf body) {
  Buf payload = sealed(kind, body);
  publish(strcmp(kind, "chunk") ? kind : chunk_topic, payload, !strcmp(kind, "status")), free(payload.p);
}
static Buf status(const char *state) {
  Buf b = {0};
  put_body(&b, 3), key_uint(&b, "conn", at.conn), key_uint(&b, "life", at.confirmed);
  key_str(&b, "state", state), put_bin(&b, "", 0);
  return b;
}
static void stop_with(int code) {                /* the broker publishes no will after a clean exit: send the status */
  Buf b = status("offline");
  send_message("status", b), free(b.p), fflush(stdout);
  leaving = 1 + code, leave_by = now() + 5;
}
static void make_hello(uint64_t above) {     /* propose a life above `above`; save it before it is sent */
  uint8_t nonce[16];
  RAND_bytes(nonce, 16);
  is_ready = tries = 0, hello.n = 0, at.life = (above > at.life ? above : at.life) + 1, save_numbers();
  put_body(&hello, 9), put_str(&hello, "caps"), put_head(&hello, 0x90, 0, 0);
  key_uint(&hello, "conn", at.conn), key_uint(&hello, "life", at.life);
  put_str(&hello, "lost"), put_head(&hello, at.confirmed ? 0xc2 : 0xc3, 0, 0);
  key_bin(&hello, "nonce", nonce, 16);
  put_str(&hello, "open"), put_head(&hello, outbox.n ? 0x91 : 0x90, 0, 0); /* updates without a receipt */
  if (outbox.n) put_head(&hello, 0x92, 0, 0), put_uint(&hello, out_life), put_uint(&hello, out_seq);
  key_str(&hello, "sdk", "device.c 1"), key_uint(&hello, "spent", at.spent);
  put_str(&hello, "wire"), put_head(&hello, 0x92, 0, 0), put_uint(&hello, 1), put_uint(&hello, 1);
  put_bin(&hello, "", 0);
  sha256(hello.p, hello.n, hello_ref), due = now();
}
static void load_outbox(void) {              /* set number, digest and proof of the pending update */
  View v = {outbox.p, outbox.n};
  uint64_t ignored;
  if (outbox.n > BODY_MAX) die("an update has at most 8 MiB");
  array_size(&v, 0), out = take(&v, &ignored, 0);
  out_life = number_of(out, "life"), out_seq = number_of(out, "seq");
  sha256(outbox.p, outbox.n, out_digest), proof_of("update", out_digest, out_proof);
}
/* Local training. `delta` = received - trained; here: trained = 0.99 × received. */
static void train(const float *received, float *delta, size_t n) {
  for (size_t i = 0; i < n; i++) delta[i] = 0.01f * received[i];
}
static void release(const float *weights, size_t n) { /* charge, number, encode, sign and save; then send */
  float *delta = malloc(4 * n + 4);
  if (!delta) die("out of memory");
  train(weights, delta, n);
  at.spent++, at.seq++, at.run = offered.run, at.round = offered.round;
  outbox.n = 0, put_body(&outbox, 10), key_uint(&outbox, "base", offered.version), key_str(&outbox, "enc", "f4");
  key_uint(&outbox, "life", at.confirmed), key_uint(&outbox, "n", 1), key_str(&outbox, "part", "delta");
  key_uint(&outbox, "round", at.round), key_uint(&outbox, "run", at.run), key_uint(&outbox, "seq", at.seq);
  key_bin(&outbox, "spec", offered.spec, 16), key_uint(&outbox, "spent", at.spent);
  put_bin(&outbox, delta, 4 * n);            /* bytes as in memory: little-endian machines only */
  free(delta), load_outbox();
  save_numbers(), save("outbox", outbox.p, outbox.n); /* a power cut between the two leaves a gap and one excess charge */
#ifdef CRASH_AFTER_RELEASE                   /* the tests' power cut: charged and saved, not sent */
  _exit(3);
#endif
}
static void send_update(bool is_first) {
  if (is_first && outbox.n <= inline_limit) {
    Buf payload = envelope("update", outbox, out_proof);
    publish("update", payload, false), free(payload.p);
  } else {                                   /* every later attempt, and every larger body: an offer (§9) */
    Buf b = {0};
    put_body(&b, 12), key_uint(&b, "base", number_of(out, "base")), key_uint(&b, "chunk", CHUNK);
    key_bin(&b, "digest", out_digest, 32), key_uint(&b, "life", out_life), key_str(&b, "of", "update");
    key_uint(&b, "round", number_of(out, "round")), key_uint(&b, "run", number_of(out, "run"));
    key_uint(&b, "seq", out_seq), key_bin(&b, "sig", out_proof, 72), key_uint(&b, "size", outbox.n);
    key_bin(&b, "spec", bytes_of(out, "spec", 16).p, 16), key_uint(&b, "spent", number_of(out, "spent"));
    put_bin(&b, "", 0), send_message("offer", b), free(b.p);
  }
  wait_for_answer();
}
static void send_chunks(View have, uint64_t window) { /* chunks that the bitmap lacks and that are not in flight (§10) */
  size_t count = (outbox.n + CHUNK - 1) / CHUNK, in_flight = 0, news = 0;
  if (have.n && have.n != (count + 7) / 8) return;
  uint8_t bits[CHUNKS_MAX / 8] = {0};
  if (have.n) memcpy(bits, have.p, have.n);
  for (size_t i = 0; i < sizeof bits; i++) news |= bits[i] & ~got_bits[i];
  memcpy(got_bits, bits, sizeof bits);
  int is_lost = !news && now() - chunk_at > 1; /* chunks in flight are lost; otherwise the report crossed with them */
  for (size_t i = 0; i < count; i++) {
    if (is_lost || bits[i / 8] >> (i % 8) & 1) sent_chunks[i] = 0;
    in_flight += sent_chunks[i];
  }
  for (size_t i = 0; i < count && in_flight < window && in_flight < AT_ONCE; i++) {
    if (sent_chunks[i] || bits[i / 8] >> (i % 8) & 1) continue;
    Buf b = {0};
    put_body(&b, 4), key_uint(&b, "i", i), key_bin(&b, "id", out_digest, 16);
    key_uint(&b, "life", out_life), key_uint(&b, "seq", out_seq);
    put_bin(&b, outbox.p + i * CHUNK, outbox.n - i * CHUNK < CHUNK ? outbox.n - i * CHUNK : CHUNK);
    send_message("chunk", b), free(b.p), sent_chunks[i] = 1, in_flight++, chunk_at = now();
  }
  tries = news ? 0 : tries, wait_for_answer();
}
static void ask_for_model(void) {
  uint8_t bitmap[CHUNKS_MAX / 8] = {0};
  size_t count = (offered.size + offered.chunk - 1) / offered.chunk;
  Buf b = {0};
  for (size_t i = 0; i < count; i++) if (arrived[i]) bitmap[i / 8] |= (uint8_t)(1 << (i % 8));
  put_body(&b, 3), key_bin(&b, "have", bitmap, (count + 7) / 8), key_bin(&b, "id", offered.digest, 16);
  key_uint(&b, "win", 16), put_bin(&b, "", 0), send_message("have", b), free(b.p), fresh = 0, wait_for_answer();
}
static int wants_model(void) {               /* a round of this run and layout, open and without an answer */
  return has_model && bundle.run && offered.run == bundle.run && !memcmp(offered.spec, bundle.spec, 16) &&
         (offered.run > at.run || (offered.run == at.run && offered.round > at.round)) &&
         server_time() < offered.until;
}

/* ---- sums (§5: sums, contract of a sum, sum) ---------------------------------------------------- */

static int is_sum;                           /* this process sends a sum, and no update */
static Buf contract, sum;                    /* the contract with the source `history`; body of the pending message */
static const View KEM = {(const uint8_t *)"KEM\0\x20", 5}, SUITE = {(const uint8_t *)"HPKE\0\x20\0\1\0\3", 10};

/* LabeledExtract, or LabeledExpand to 32 bytes, of RFC 9180, section 4. */
static void labelled(int expands, const uint8_t *key, size_t n, View suite, const char *label, const void *value, size_t size, uint8_t out_bytes[32]) {
  Buf b = {0};
  unsigned got = 32;
  if (expands) put(&b, "\0\x20", 2);
  put(&b, "HPKE-v1", 7), put(&b, suite.p, suite.n), put(&b, label, strlen(label)), put(&b, value, size);
  if (expands) put(&b, "\1", 1);
  if (!HMAC(EVP_sha256(), key, (int)n, b.p, b.n, out_bytes, &got)) die("HMAC failed");
  free(b.p);
}
static void agree_on_seed(const uint8_t witness[32], const void *info, size_t size, uint8_t enc[32], uint8_t seed[32]) {
  uint8_t agreed[32], key[32], both[64], bound[65] = {0};
  size_t n = 32, m = 32;
  EVP_PKEY *own = NULL, *peer = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, witness, 32);
  EVP_PKEY_CTX *make = EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, NULL), *agree = NULL;
  if (!peer || !make || EVP_PKEY_keygen_init(make) <= 0 || EVP_PKEY_keygen(make, &own) <= 0 ||
      !EVP_PKEY_get_raw_public_key(own, enc, &n) || !(agree = EVP_PKEY_CTX_new(own, NULL)) || EVP_PKEY_derive_init(agree) <= 0 ||
      EVP_PKEY_derive_set_peer(agree, peer) <= 0 || EVP_PKEY_derive(agree, agreed, &m) <= 0) die("X25519 failed"); /* also for a key of small order */
  memcpy(both, enc, 32), memcpy(both + 32, witness, 32);
  labelled(0, (const uint8_t *)"", 0, KEM, "eae_prk", agreed, 32, key), labelled(1, key, 32, KEM, "shared_secret", both, 64, agreed);
  labelled(0, (const uint8_t *)"", 0, SUITE, "psk_id_hash", "", 0, bound + 1);
  labelled(0, (const uint8_t *)"", 0, SUITE, "info_hash", info, size, bound + 33);
  labelled(0, agreed, 32, SUITE, "secret", "", 0, key), labelled(1, key, 32, SUITE, "exp", bound, 65, agreed);
  labelled(1, agreed, 32, SUITE, "sec", "gridfed/1/sum mask", 18, seed);
  EVP_PKEY_CTX_free(agree), EVP_PKEY_CTX_free(make), EVP_PKEY_free(peer), EVP_PKEY_free(own);
}
static void read_numbers(double *numbers, size_t length) { /* one in a line */
  char path[512];
  snprintf(path, sizeof path, "%s/numbers", folder);
  FILE *file = fopen(path, "r");
  for (size_t i = 0; i < length; i++)
    if (!file || fscanf(file, "%lf", numbers + i) != 1 || !isfinite(numbers[i])) die("STATE/numbers: a finite number is missing");
  fclose(file);
}
static void make_sum(void) {                 /* mask, sign and save the newest whole period; then send it */
  static double numbers[4096];
  static uint8_t zeros[8 * 4096], masked[8 * 4096];
  View body = {contract.p, contract.n}, header;
  uint8_t id_of[32], enc[32], seed[32], nonce[16] = {0}, digest[32], proof[64], big[8];
  uint64_t offset = 0, ignored;
  array_size(&body, 0), header = take_as(&body, 'm', &ignored, 0), misfit = 0;
  double lowest = float_of(header, "lowest"), highest = float_of(header, "highest"), step = float_of(header, "resolution");
  uint64_t length = number_of(header, "length"), period = number_of(header, "period"), late = number_of(header, "due");
  View witness = bytes_of(header, "witness", 32);
  if (misfit || !length || length > 4096 || !period || period % length || !(lowest < highest) || !(step > 0) || !((highest - lowest) / step <= 0x1p43))
    die("a contract that this device cannot follow");
  field(header, "offset", 'i', &offset), misfit = 0; /* it is optional */
  if (server_time() < offset + 2 * period) die("no period is over");
  uint64_t begin = server_time() - (server_time() - offset) % period - period;
  if (begin < at.sum_until || server_time() > begin + late) { printf("no sum is due\n"), stop_with(0); return; }
  read_numbers(numbers, length), sha256(contract.p, contract.n, id_of);
  for (int i = 0; i < 8; i++) big[i] = (uint8_t)(begin >> (56 - 8 * i));
  Buf context = {0}, info = {0}, data = {0};
  const char *names[] = {fleet, id};
  for (int i = 0; i < 2; i++) { uint8_t n = (uint8_t)strlen(names[i]); put(&context, &n, 1), put(&context, names[i], n); }
  put(&context, id_of, 32), put(&context, big, 8);
  put(&info, "gridfed/1/sum seed", 19), put(&info, context.p, context.n); /* includes the final 0 */
  agree_on_seed(witness.p, info.p, info.n, enc, seed);
  EVP_CIPHER_CTX *cipher = EVP_CIPHER_CTX_new();
  int got = 0;
  if (!cipher || !EVP_EncryptInit_ex(cipher, EVP_chacha20(), NULL, seed, nonce) || !EVP_EncryptUpdate(cipher, masked, &got, zeros, (int)(8 * length)))
    die("ChaCha20 failed");
  double most = floor((highest - lowest) / step + 1e-6);
  for (size_t i = 0; i < length; i++) {      /* little-endian machines only */
    uint64_t word, k = (uint64_t)fmin(nearbyint((fmin(fmax(numbers[i], lowest), highest) - lowest) / step), most);
    memcpy(&word, masked + 8 * i, 8), word += k, memcpy(masked + 8 * i, &word, 8);
  }
  sha256(masked, 8 * length, digest);
  put(&data, "gridfed/1/sum", 14), put(&data, context.p, context.n), put(&data, enc, 32), put(&data, digest, 32);
  size_t n = 64;
  EVP_MD_CTX *signing = EVP_MD_CTX_new();
  if (!signing || EVP_DigestSignInit(signing, NULL, NULL, NULL, own_key) <= 0 || EVP_DigestSign(signing, proof, &n, data.p, data.n) <= 0) die("signing failed");
  sum.n = 0, put_body(&sum, 4), key_bin(&sum, "enc", enc, 32), key_bin(&sum, "of", id_of, 16), key_uint(&sum, "period", begin);
  key_bin(&sum, "proof", proof, 64), put_bin(&sum, masked, 8 * length);
  at.sum_until = begin + period, at.sum_due = begin + late;
  save_numbers(), save("sum", sum.p, sum.n); /* a power cut between the two leaves this period out: it is never masked twice */
  OPENSSL_cleanse(seed, sizeof seed), EVP_MD_CTX_free(signing), EVP_CIPHER_CTX_free(cipher);
  free(context.p), free(info.p), free(data.p);
}
static void send_sum(void) {                 /* the same bytes until the receipt, or until they are late */
  if (sum.n && server_time() > at.sum_due) sum.n = 0;
  if (!sum.n && contract.n) make_sum();
  if (sum.n) send_message("sum", sum), wait_for_answer();
}
static void on_sums(View header) {
  uint64_t serial = number_of(header, "serial"), ignored;
  View list = field(header, "contracts", 'a', &ignored);
  if (misfit || serial < at.sums) return;    /* serials never decrease */
  if (serial > at.sums) at.sums = serial, save_numbers();
  for (uint64_t i = array_size(&list, 0); i && list.p; i--) {
    View body = take_as(&list, 'b', &ignored, 0), whole = body, terms;
    array_size(&body, 0), terms = take_as(&body, 'm', &ignored, 0);
    if (body.p && is_header(terms) && text_is(terms, "source", "history")) contract.n = 0, put(&contract, whole.p, whole.n);
  }
  schedule_step();
}
static void on_sum_receipt(View header) {
  uint8_t digest[32];
  if (!sum.n) return;
  sha256(sum.p, sum.n, digest);
  if (!same(bytes_of(header, "of", 16), digest, 16)) return;
  printf("sum receipt until=%llu\n", (unsigned long long)at.sum_until);
  sum.n = 0, save("sum", "", 0), stop_with(0);
}

/* ---- events --------------------------------------------------------------------------------------- */

static void next_step(void) {
  due = 0;
  if (must_wait()) return;
  if (!is_ready) send_message("hello", hello), wait_for_answer(); /* the same bytes until the answer */
  else if (outbox.n) send_update(false);
  else if (is_sum) send_sum();
  else if (wants_model() && now() < offered.start) due = offered.start;
  else if (wants_model()) ask_for_model();
}
static void on_chunk(View header, View blob) {
  uint64_t i = number_of(header, "i"), begin = i * offered.chunk, ignored;
  if (misfit || !wants_model() || !is_ready || outbox.n || !same(bytes_of(header, "id", 16), offered.digest, 16)) return;
  if (i >= CHUNKS_MAX || begin >= offered.size || arrived[i]) return;
  if (blob.n != (offered.size - begin < offered.chunk ? offered.size - begin : offered.chunk)) return;
  memcpy(model + begin, blob.p, blob.n), arrived[i] = 1, tries = 0, due = now() + 2;
  if (++fresh == 8) due = now();             /* half of the window arrived: report at once */
  for (uint64_t k = 0; k * offered.chunk < offered.size; k++) if (!arrived[k]) return;
  uint8_t digest[32];
  View body = {model, offered.size}, head, vector;
  sha256(model, offered.size, digest);
  if (memcmp(digest, offered.digest, 32)) { memset(arrived, 0, sizeof arrived), wait_for_answer(); return; }
  has_model = 0, due = 0;
  if (array_size(&body, 0) != 2) return;
  head = take_as(&body, 'm', &ignored, 0), vector = take_as(&body, 'b', &ignored, 0);
  if (!body.p || body.n || !is_header(head) || !text_is(head, "enc", "f4") || vector.n % 4) return;
  if (!same(bytes_of(head, "spec", 16), offered.spec, 16) || number_of(head, "version") != offered.version) return;
  float *weights = malloc(vector.n + 4);
  if (!weights) die("out of memory");
  memcpy(weights, vector.p, vector.n);
  for (size_t k = 0; k < vector.n / 4; k++) if (!isfinite(weights[k])) die("the model contains non-finite values");
  release(weights, vector.n / 4), free(weights), tries = 0, send_update(true);
}
static void subscribe(const char *pattern) {
  char filter[256];
  snprintf(filter, sizeof filter, pattern, fleet, id);
  mosquitto_subscribe(link_, NULL, filter, 1);
}
static void on_keys(View header) {
  uint64_t serial = number_of(header, "serial"), ignored;
  View list = field(header, "sign", 'a', &ignored), from = field(header, "from", 'a', &ignored);
  View until = field(header, "until", 'a', &ignored);
  if (misfit || serial < at.keys) return;    /* serials never decrease */
  uint64_t count = array_size(&list, 0);
  if (count > KEYS_MAX || array_size(&from, 0) != count || array_size(&until, 0) != count) return;
  for (sign_count = 0; sign_count < count; sign_count++) {
    View key = take_as(&list, 'b', &ignored, 0);
    take_as(&from, 'i', &sign_from[sign_count], 0), take_as(&until, 'i', &sign_until[sign_count], 0);
    if (key.n != 32 || !from.p || !until.p) break;
    memcpy(sign_keys[sign_count], key.p, 32);
  }
  if (serial > at.keys) at.keys = serial, save_numbers();
  subscribe("gf/1/%s/%s/down/#"), schedule_step();    /* every other message can be verified from now on */
  subscribe("gf/1/%s/_all/bundle"), subscribe("gf/1/%s/_all/model");
  if (is_sum) subscribe("gf/1/%s/_all/sums");
  if (is_online++) return;                   /* first message: REVOKED comes once an hour and needs the keys */
  Buf online = status("online");
  send_message("status", online), free(online.p);
}
static void on_welcome(View header) {
  uint64_t announced = number_of(header, "spent"), life = number_of(header, "life"), ms = number_of(header, "time");
  uint64_t most = number_of(header, "inline"), day = number_of(header, "quota");
  if (misfit || is_ready || !same(bytes_of(header, "hello", 16), hello_ref, 16)) return;
  if (announced > at.spent + (1 << 24)) { fprintf(stderr, "device: the welcome announces %llu releases, implausibly many\n", (unsigned long long)announced); return; }
  at.spent = announced > at.spent ? announced : at.spent, at.seq = 0, at.life = at.confirmed = life, save_numbers();
  inline_limit = most, quota = day, welcome_time = ms, time_received = now();
  is_ready = 1, tries = 0, due = now(), printf("welcome life=%llu\n", (unsigned long long)life);
}
static int is_expired(View header) {         /* by server time; without it nothing counts as expired */
  uint64_t expires = number_of(header, "expires");
  int is_past = !misfit && server_time() >= expires;
  misfit = 0;                                /* `expires` is optional */
  if (is_past) fprintf(stderr, "device: an announcement expired: a newer one may be withheld\n");
  return is_past;
}
static void on_bundle(View header) {
  uint64_t serial = number_of(header, "serial"), run = number_of(header, "run");
  View layout = bytes_of(header, "spec", 16);
  int is_served = text_is(header, "method", "fedavg") || text_is(header, "method", "fedprox") ||
                  text_is(header, "method", "fedavgm") || text_is(header, "method", "fedadam");
  if (misfit || serial < at.bundle || is_expired(header)) return;
  if (serial > at.bundle) at.bundle = serial, save_numbers();
  bundle.run = is_served ? run : 0, memcpy(bundle.spec, layout.p, 16), schedule_step();
}
static int is_drawn(View header) {           /* u < share (§11) */
  double share = float_of(header, "share"), u = uniform(1);
  uint8_t hash[32];
  uint64_t ignored;
  if (misfit) return 0;
  View salt = field(header, "cohort", 'b', &ignored);
  if (!misfit) {
    Buf b = {0};
    put(&b, salt.p, salt.n), put(&b, id, strlen(id)), sha256(b.p, b.n, hash), free(b.p);
    View first = {hash, 8};
    u = (double)take_be(&first, 8) / 18446744073709551616.0;
  }
  misfit = 0;                                /* `cohort` is optional */
  return u < share;
}
static void on_model(View header) {
  uint64_t serial = number_of(header, "serial"), size = number_of(header, "size"), chunk = number_of(header, "chunk");
  View digest = bytes_of(header, "digest", 32), layout = bytes_of(header, "spec", 16);
  if (misfit || is_expired(header)) return;
  if (!is_drawn(header) || serial <= offered.serial || outbox.n || !text_is(header, "phase", "train")) return;
  double start = now() + uniform((double)number_of(header, "spread") / 1000);
  uint64_t until = number_of(header, "until"), round = number_of(header, "round"), version = number_of(header, "version");
  uint64_t run = number_of(header, "run"), most = number_of(header, "inline");
  if (misfit || !text_is(header, "enc", "f4") || !size || size > BODY_MAX || !chunk || chunk > CHUNK) return;
  if (size > chunk * CHUNKS_MAX || !(model = realloc(model, size))) return;
  offered.serial = serial, offered.run = run, offered.round = round, offered.version = version;
  offered.size = size, offered.chunk = chunk, offered.until = until, offered.start = start, inline_limit = most;
  memcpy(offered.digest, digest.p, 32), memcpy(offered.spec, layout.p, 16), memset(arrived, 0, sizeof arrived);
  has_model = 1;
  if (is_ready) tries = 0, due = now();
}
static void on_refusal(View header) {
  uint64_t code = number_of(header, "code"), wait = number_of(header, "wait");
  if (misfit) return;
  printf("refusal code=%llu\n", (unsigned long long)code);
  if (code == 7 || code == 80 || code == 82) { stop_with(4); return; } /* REVOKED, UPGRADE_REQUIRED, TWO_LIVES */
  if (code == 42) { if (is_ready) make_hello(at.life); return; }   /* SAY_HELLO */
  if (code <= 6) return;                     /* report it; the timer repeats the message (§12) */
  if (code == 60 && !outbox.n) has_model = 0; /* NOT_FOUND: a newer model will follow */
  int is_known = (code <= 11) || code == 36 || (code >= 40 && code <= 44) || (code >= 60 && code <= 66);
  due = not_before = now() + (is_known && wait < 86400000 ? (double)wait / 1000 : 900);
}
static void on_message(struct mosquitto *m, void *data, const struct mosquitto_message *message) {
  View v = {message->payload, (size_t)message->payloadlen}, kind, sender, body, proof, header, blob;
  uint64_t wire = 0, ignored = 0, t = server_time();
  uint8_t digest[32];
  char word[17] = "", own[256];
  const char *slash = strrchr(message->topic, '/');
  (void)m, (void)data, used += v.n;
  if (!v.n || v.n > PAYLOAD_MAX || !slash || array_size(&v, 0) != 5) return; /* checks in the order of §3 */
  take_as(&v, 'i', &wire, 0), kind = take_as(&v, 's', &ignored, 0), sender = take_as(&v, 's', &ignored, 0);
  body = take_as(&v, 'b', &ignored, 0), proof = take_as(&v, 'b', &ignored, 0);
  if (!v.p || v.n || kind.n > 16 || sender.n > 64 || proof.n != 72 || wire != 1) return;
  memcpy(word, kind.p, kind.n);
  if (strcmp(slash + 1, word)) return;
  snprintf(own, sizeof own, "gf/1/%s/%s/down/", fleet, id);
  const char *to = strncmp(message->topic, own, strlen(own)) ? "_all" : id;
  int from_root = !strcmp(word, "keys") || !strcmp(word, "bundle") || !strcmp(word, "sums"), ok = 0;
  if (!same(sender, from_root ? "_root" : "_agg", from_root ? 5 : 4)) return;
  sha256(body.p, body.n, digest);
  if (from_root) ok = is_proved(root, proof, word, "_root", to, digest);
  for (size_t i = 0; i < sign_count && !from_root && !ok; i++) /* without server time the period of validity is not checked */
    ok = (!t || (sign_from[i] <= t && t < sign_until[i])) && is_proved(sign_keys[i], proof, word, "_agg", to, digest);
  if (!ok || !body.n || body.p[0] != 0x92) return;
  array_size(&body, 0), header = take_as(&body, 'm', &ignored, 0), blob = take_as(&body, 'b', &ignored, 0);
  if (!body.p || body.n || !is_header(header) || (blob.n && strcmp(word, "chunk")) || leaving) return;
  misfit = 0;
  if (!strcmp(word, "keys")) on_keys(header);
  else if (!strcmp(word, "welcome")) on_welcome(header);
  else if (!strcmp(word, "bundle")) on_bundle(header);
  else if (!strcmp(word, "model")) on_model(header);
  else if (!strcmp(word, "chunk")) on_chunk(header, blob);
  else if (!strcmp(word, "refusal")) on_refusal(header);
  else if (!strcmp(word, "sums")) on_sums(header);
  else if (!strcmp(word, "sumreceipt")) on_sum_receipt(header);
  else if (!strcmp(word, "floor")) {
    uint64_t top = number_of(header, "life");
    if (same(bytes_of(header, "hello", 16), hello_ref, 16) && !misfit && !is_ready && top <= at.life + (1 << 20)) make_hello(top);
  } else if (outbox.n && (!strcmp(word, "grant") || !strcmp(word, "have"))) {
    uint64_t window = number_of(header, "win");
    View have = bytes_of(header, "have", 0), worker;
    if (misfit || !same(bytes_of(header, "id", 16), out_digest, 16) || is_spent()) return;
    if (!strcmp(word, "grant") && (worker = field(header, "to", 's', &ignored)).p)
      snprintf(chunk_topic, sizeof chunk_topic, "chunk/%.*s", (int)worker.n, (const char *)worker.p);
    send_chunks(have, window);
  } else if (outbox.n && !strcmp(word, "receipt")) { /* a receipt counts only for exactly these bytes */
    uint64_t code = number_of(header, "code"), round = number_of(header, "round");
    if (number_of(header, "life") != out_life || number_of(header, "seq") != out_seq) return;
    if (!same(bytes_of(header, "ref", 16), out_digest, 16) || misfit) return;
    printf("receipt code=%llu round=%llu\n", (unsigned long long)code, (unsigned long long)round);
    save("outbox", "", 0), stop_with(code ? 2 : 0);
  }
  fflush(stdout);
}
static void on_connect(struct mosquitto *m, void *data, int code) {
  (void)m, (void)data;
  if (code) { fprintf(stderr, "device: the broker refused: %s\n", mosquitto_connack_string(code)); return; }
  subscribe("gf/1/%s/_all/keys");            /* keys first: no message can be verified without them */
  is_online = 0;
}
static void on_publish(struct mosquitto *m, void *data, int mid) { (void)m, (void)data, (void)mid, acknowledged++; }
static void next_connection(void) {          /* `conn` increases by one; the will contains it */
  char topic[256];
  at.conn++, save_numbers();
  Buf gone = status("lost"), will = sealed("status", gone);
  snprintf(topic, sizeof topic, "gf/1/%s/%s/status", fleet, id);
  mosquitto_will_set(link_, topic, (int)will.n, will.p, 1, true), free(gone.p), free(will.p);
}
static void from_hex(const char *text, uint8_t out_bytes[32]) {
  if (strlen(text) != 64) die("a key is 64 hex digits");
  for (int i = 0; i < 32; i++) if (sscanf(text + 2 * i, "%2hhx", &out_bytes[i]) != 1) die("a key is 64 hex digits");
}
int main(int count, char **words) {
  uint8_t seed[32];
  size_t n = 32;
  int is_keygen = count == 3 && !strcmp(words[1], "keygen");
  is_sum = count == 8 && !strcmp(words[1], "sum");
  if (!is_keygen && !is_sum && !(count == 8 && !strcmp(words[1], "run")))
    die("usage: device keygen STATE | device run|sum STATE HOST PORT FLEET ID ROOT_PUBLIC_KEY_HEX");
  folder = words[2], mkdir(folder, 0700);
  if (load("seed", seed, 32) != 32) { RAND_bytes(seed, 32), save("seed", seed, 32); }
  own_key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, 32);
  if (!own_key || !EVP_PKEY_get_raw_public_key(own_key, own_public, &n)) die("Ed25519 is not available");
  if (is_keygen) { for (int i = 0; i < 32; i++) printf("%02x", own_public[i]); puts(""); return 0; }
  fleet = words[5], id = words[6], from_hex(words[7], root), strcpy(chunk_topic, "chunk");
  if (strlen(fleet) > 32 || strlen(id) > 64) die("a fleet has at most 32 letters, a device 64");
  load("state", &at, sizeof at);
  uint8_t *body = malloc(BODY_MAX);          /* the pending update of the last process, byte for byte */
  long waiting = body ? load("outbox", body, BODY_MAX) : -1;
  if (waiting > 0) put(&outbox, body, (size_t)waiting), load_outbox();
  waiting = body && is_sum ? load("sum", body, BODY_MAX) : -1;
  if (waiting > 0) put(&sum, body, (size_t)waiting);
  free(body);
  mosquitto_lib_init();
  if (!(link_ = mosquitto_new(id, false, NULL))) die("out of memory");
  mosquitto_connect_callback_set(link_, on_connect), mosquitto_message_callback_set(link_, on_message);
  mosquitto_publish_callback_set(link_, on_publish);
  next_connection(), make_hello(0);          /* one hello per process start (§8) */
  if (mosquitto_connect(link_, words[3], atoi(words[4]), 60)) die("no broker at this address");
  for (;;) {
    if (mosquitto_loop(link_, 200, 1) && !leaving)
      usleep((useconds_t)(1e6 * (1 + uniform(9)))), next_connection(), mosquitto_reconnect(link_);
    if (leaving && (acknowledged >= sent || now() > leave_by)) { mosquitto_disconnect(link_); return leaving - 1; }
    if (!leaving && sign_count && due && now() >= due) next_step();
  }
}
