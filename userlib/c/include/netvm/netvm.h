/* NetVM for C and C++: remote memory without pinning. Made from the library's source; netvm(7) explains the concepts.
 *
 * Every call but those that return a text answers 0 or a negative errno. netvm_error_message() and its like say more about the last
 * error of the calling thread.
 *
 * Handles are made by the calls with open, start, alloc, adopt, import, join, create or begin in their names, and ended by the close call of
 * their kind. A handle that was closed, is NULL, of another kind, or of the parent of a fork, is refused with -EBADF (NULL: -EINVAL).
 * All calls may be made from all threads; where a handle serves one thread at a time, another one gets -EBUSY.
 *
 * A place for a result may be NULL only where the call says so, and is filled only by a call that answers 0. A structure begins with its
 * size, which the program sets to sizeof of it; everything else that it does not set is to be 0. Bytes that a call is given must not change
 * during the call. Time-outs are in nanoseconds: 0 is not to wait (-EAGAIN), NETVM_FOREVER never to give up (else -ETIMEDOUT). */


#ifndef NETVM_NETVM_H
#define NETVM_NETVM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Any port, in a line of an access list.
#define NETVM_ANY 4294967295

// A time-out that never ends.
#define NETVM_FOREVER -1

// It is done.
#define NETVM_STATUS_OK 0

// The descriptor or message makes no sense.
#define NETVM_STATUS_MALFORMED 1

// The operation is not offered by this firmware.
#define NETVM_STATUS_UNSUPPORTED 2

// No such node, or the node table does not know it.
#define NETVM_STATUS_NO_SUCH_NODE 3

// The port is not open, or has been closed since.
#define NETVM_STATUS_NO_SUCH_PORT 4

// The capability is unknown, revoked, of another holder, or its secret is wrong.
#define NETVM_STATUS_CAPABILITY_REFUSED 5

// Outside of the range that the capability names.
#define NETVM_STATUS_OUT_OF_RANGE 6

// The capability does not allow this kind of access.
#define NETVM_STATUS_MODE_REFUSED 7

// The capability's time is over.
#define NETVM_STATUS_EXPIRED 8

// The destination or source page is not mapped in the process.
#define NETVM_STATUS_UNMAPPED 9

// The process may only read the page.
#define NETVM_STATUS_READ_ONLY 10

// The host has no memory to page in with.
#define NETVM_STATUS_NO_MEMORY 11

// Past the end of the mapped file, or an IO error while paging in.
#define NETVM_STATUS_BUS_ERROR 12

// The one-shot part of the receiver's notification queue is full.
#define NETVM_STATUS_QUEUE_FULL 13

// The link to the node has failed; its fate is unknown.
#define NETVM_STATUS_LINK_LOST 14

// The message belongs to an earlier life of a node.
#define NETVM_STATUS_STALE_INCARNATION 15

// The local address is not registered, or crosses a page.
#define NETVM_STATUS_LOCAL_ADDRESS 16

// No export of that name.
#define NETVM_STATUS_NO_SUCH_EXPORT 17

// The allow-list of the export does not name the caller, or not with these modes.
#define NETVM_STATUS_NOT_ALLOWED 18

// A table is full.
#define NETVM_STATUS_TABLE_FULL 19

// It took longer than it may: an answer did not come, or a page of the target or of the source.
#define NETVM_STATUS_TIMED_OUT 20

// The card is gone or does not answer.
#define NETVM_STATUS_CARD_GONE 21

// The two sides speak different versions, or have different page sizes.
#define NETVM_STATUS_VERSION_MISMATCH 22

// The operation was cut off by a revocation or an unexport.
#define NETVM_STATUS_REVOKED 23

// Not carried out: it asked for order, and an earlier operation of its stream has failed.
#define NETVM_STATUS_HELD_BACK 24

// Not carried out: the shared queue has no free place. For its stream the append has not failed.
#define NETVM_STATUS_NO_PLACE 25

// `number` counts, also if it is 0.
#define NETVM_NODE_NUMBER 1

// UDP may be bound to an address that other machines reach, though there is no key and nothing is encrypted.
#define NETVM_NODE_INSECURE 2

// The memory may be read.
#define NETVM_READ 1

// It may be written.
#define NETVM_WRITE 2

// Its words may be changed by atomics.
#define NETVM_ATOMIC 4

// The exporting port may be notified.
#define NETVM_NOTIFY 8

// The shared queue in it may be appended to.
#define NETVM_APPEND 16

// Return only when this and all earlier writes (or reads) of the port are done at this node: their memory may be used again.
#define NETVM_FENCED 1

// Act only after everything earlier from this port to that node has landed.
#define NETVM_ORDERED 2

// Act, and notify, even if an earlier operation to that node has failed.
#define NETVM_REGARDLESS 4

// Do not wait for room: -EAGAIN if there is none.
#define NETVM_NOWAIT 8

// More follows at once: the next operation without this flag, a wait or netvm_progress() calls the card for all of them. Writes that it
// takes in one run leave together. Until then they may stand in the queue.
#define NETVM_MORE 16

// The other card has received it, and needs nothing of this node any more.
#define NETVM_RECEIVED 1

// It has landed in the memory there.
#define NETVM_LANDED 2

// Adds the operand, wrapping.
#define NETVM_FETCH_ADD 1

// Subtracts the operand, wrapping.
#define NETVM_FETCH_SUB 2

// Stores the operand.
#define NETVM_SWAP 3

// Stores the operand if the word is what is compared with.
#define NETVM_COMPARE_SWAP 4

// Stores 1 if the word is 0. The operand counts for nothing.
#define NETVM_TEST_AND_SET 5

// A number of 8 bits with sign.
#define NETVM_INT8 1

// A number of 8 bits without sign.
#define NETVM_UINT8 2

// A number of 16 bits with sign.
#define NETVM_INT16 3

// A number of 16 bits without sign.
#define NETVM_UINT16 4

// A number of 32 bits with sign.
#define NETVM_INT32 5

// A number of 32 bits without sign.
#define NETVM_UINT32 6

// A number of 64 bits with sign.
#define NETVM_INT64 7

// A number of 64 bits without sign.
#define NETVM_UINT64 8

// `float`: 32 bits.
#define NETVM_FLOAT 9

// `double`: 64 bits.
#define NETVM_DOUBLE 10

// `float complex`: real and imaginary part, of 32 bits each.
#define NETVM_FLOAT_COMPLEX 11

// Stores the operand if it is less.
#define NETVM_MIN 16

// Stores the operand if it is greater.
#define NETVM_MAX 17

// Adds the operand. Whole numbers wrap.
#define NETVM_SUM 18

// Multiplies by the operand. Whole numbers wrap.
#define NETVM_PRODUCT 19

// Stores 1 if the number or the operand is not 0, else 0.
#define NETVM_LOGICAL_OR 20

// Stores 1 if neither the number nor the operand is 0, else 0.
#define NETVM_LOGICAL_AND 21

// ORs the bits.
#define NETVM_BIT_OR 22

// ANDs the bits.
#define NETVM_BIT_AND 23

// Stores 1 if just one of the number and the operand is not 0, else 0.
#define NETVM_LOGICAL_XOR 24

// XORs the bits.
#define NETVM_BIT_XOR 25

// Changes nothing. The operand counts for nothing and may be NULL.
#define NETVM_LOAD 26

// Stores the operand.
#define NETVM_STORE 27

// Stores the operand if `compare` is equal to the number.
#define NETVM_SWAP_EQ 28

// Stores the operand if `compare` is not equal to the number.
#define NETVM_SWAP_NE 29

// Stores the operand if `compare` is less than or equal to the number.
#define NETVM_SWAP_LE 30

// Stores the operand if `compare` is less than the number.
#define NETVM_SWAP_LT 31

// Stores the operand if `compare` is greater than or equal to the number.
#define NETVM_SWAP_GE 32

// Stores the operand if `compare` is greater than the number.
#define NETVM_SWAP_GT 33

// Stores those bits of the operand that are set in `compare`.
#define NETVM_SWAP_BITS 34

// Only ports of `node` may join.
#define NETVM_CHANNEL_NODE 1

// With NETVM_CHANNEL_NODE: only its port `port` may join.
#define NETVM_CHANNEL_PORT 2

// A participant of an asymmetric lock. It serves one thread at a time.
typedef struct netvm_alock netvm_alock;

// An asymmetric lock, in the process that is its home.
typedef struct netvm_alock_home netvm_alock_home;

// A participant of a condition of a monitor. It serves one thread at a time.
typedef struct netvm_condition netvm_condition;

// Operations of one port under way, in the order in which they end.
typedef struct netvm_cq netvm_cq;

// A port as a part of an event loop.
typedef struct netvm_events netvm_events;

// Memory of a port that others may use.
typedef struct netvm_export netvm_export;

// The home of a lock, a semaphore, a wait queue, a monitor or a condition: what lives there ends with it.
typedef struct netvm_home netvm_home;

// A participant of a lock. It serves one thread at a time.
typedef struct netvm_lock netvm_lock;

// A participant of a monitor. It serves one thread at a time.
typedef struct netvm_monitor netvm_monitor;

// A node of the network, which this process works on.
typedef struct netvm_node netvm_node;

// An operation under way, with a word of the program.
typedef struct netvm_pending netvm_pending;

// An endpoint on a node: it owns regions, exports and imports, posts operations and receives notifications.
typedef struct netvm_port netvm_port;

// The receiving end of a channel. It serves one thread at a time.
typedef struct netvm_receiver netvm_receiver;

// Receivers of one port that are waited for together. It serves one thread at a time.
typedef struct netvm_receiver_set netvm_receiver_set;

// Memory that the card can reach. No page of it is pinned.
typedef struct netvm_region netvm_region;

// Memory of another port, which this port may use.
typedef struct netvm_remote netvm_remote;

// A participant of a semaphore. It serves one thread at a time.
typedef struct netvm_semaphore netvm_semaphore;

// The sending end of a channel. It serves one thread at a time.
typedef struct netvm_sender netvm_sender;

// The receiving end of a shared queue. It serves one thread at a time.
typedef struct netvm_shared_receiver netvm_shared_receiver;

// A sending end of a shared queue.
typedef struct netvm_shared_sender netvm_shared_sender;

// A participant of a wait queue. It serves one thread at a time.
typedef struct netvm_wait_queue netvm_wait_queue;

// An operation that failed.
typedef struct netvm_failure {
  // `sizeof(struct netvm_failure)`.
  size_t size;
  // The operation's number, as the call that posted it has told.
  uint32_t op;
  // Why: NETVM_STATUS_...
  uint32_t status;
  // The node that it went to.
  uint16_t node;
  // The port there.
  uint16_t port;
  // How many more operations to the same node are known to have failed.
  uint32_t others;
  // The address, there or here, at which it failed.
  uint64_t address;
} netvm_failure;

// What a software card is to be like. What is 0 or NULL is left to the library.
typedef struct netvm_node_options {
  // `sizeof(struct netvm_node_options)`.
  size_t size;
  // NETVM_NODE_...
  uint32_t flags;
  // The node's number, with NETVM_NODE_NUMBER.
  uint16_t number;
  // Node numbers are below this.
  uint16_t nodes;
  // A name that others on this machine find the node by.
  const char *name;
  // An address for links by UDP, such as "127.0.0.1:4800"; port 0: any.
  const char *udp;
  // A file with the key that encrypts UDP; `netvm key new` makes one.
  const char *key_file;
  // Ports of the node.
  uint16_t ports;
  // Messages that may be under way to a node at once.
  uint16_t window;
  // With how many nodes messages may be under way at once.
  uint16_t windows;
  // Not used; 0.
  uint16_t reserved;
  // Largest payload of a message in bytes.
  uint32_t payload;
  // Milliseconds of silence after which a peer is lost.
  uint32_t peer_timeout_ms;
  // Milliseconds that a page may take to come.
  uint32_t page_timeout_ms;
  // Not used; 0.
  uint32_t reserved2;
} netvm_node_options;

// How to open a port. What is 0 is left to the library.
typedef struct netvm_port_options {
  // `sizeof(struct netvm_port_options)`.
  size_t size;
  // The port's number, which others name to import from it; 0: any free one.
  uint16_t port;
  // Not used; 0.
  uint16_t reserved;
  // How often a wait looks before it blocks.
  uint32_t spins;
  // Bytes of the region through which bytes pass that the card cannot reach where they are.
  uint64_t staging_bytes;
  // One-shot notifications that are taken out of the card's queue ahead of the program.
  uint64_t one_shot_backlog;
} netvm_port_options;

// What a port has done since it was opened.
typedef struct netvm_port_stats {
  // `sizeof(struct netvm_port_stats)`.
  size_t size;
  // Write calls posted.
  uint64_t writes;
  // Messages that they were cut into.
  uint64_t write_messages;
  // Read calls posted.
  uint64_t reads;
  // Messages that they were cut into.
  uint64_t read_messages;
  // Waits posted for what has landed.
  uint64_t remote_flushes;
  // Waits posted for what the other card has received.
  uint64_t received_flushes;
  // Atomics posted.
  uint64_t atomics;
  // Bytes that travelled inside of descriptors.
  uint64_t inline_bytes;
  // Bytes transferred straight from or to a region.
  uint64_t zero_copy_bytes;
  // Bytes copied through the port's own region.
  uint64_t staged_bytes;
  // How often a call found no room and waited.
  uint64_t queue_full;
  // Operations reported as failed.
  uint64_t failures;
  // Signals acknowledged.
  uint64_t acknowledged;
  // Times a caller blocked instead of spinning.
  uint64_t blocked;
} netvm_port_stats;

// A line of an access list: a node or a port, and what it may do.
typedef struct netvm_admission {
  // The node.
  uint32_t node;
  // Its port, or NETVM_ANY.
  uint32_t port;
  // What it may do: NETVM_READ, NETVM_WRITE, NETVM_ATOMIC, NETVM_APPEND.
  uint32_t modes;
} netvm_admission;

// What each importer of an export may do. All zeroes: nothing.
typedef struct netvm_access {
  // `sizeof(struct netvm_access)`.
  size_t size;
  // What every port may do; 0: only those with a line may import. NETVM_NOTIFY: signal the notifications below.
  uint32_t modes;
  // The first notification that a port which may import may also signal; 0: none.
  uint32_t notify_first;
  // The last one.
  uint32_t notify_last;
  // How many lines there are, at most 16.
  uint32_t count;
  // What single nodes and ports may do beside that. NULL if there are no lines.
  const struct netvm_admission *admissions;
} netvm_access;

// What an import is.
typedef struct netvm_remote_info {
  // `sizeof(struct netvm_remote_info)`.
  size_t size;
  // Its length in bytes.
  uint64_t len;
  // Its first address at the exporter.
  uint64_t address;
  // What the exporter allows.
  uint32_t modes;
  // The exporting node.
  uint16_t node;
  // The exporting port.
  uint16_t port;
} netvm_remote_info;

// A piece of a vector: remote memory, and the local memory that goes there or comes from there.
typedef struct netvm_piece {
  // An import of the port. All pieces of a vector go to one node.
  struct netvm_remote *remote;
  // Where the piece begins in it.
  uint64_t remote_offset;
  // A region of the port; NULL: bytes of the program.
  struct netvm_region *region;
  // Where the piece begins in the region.
  uint64_t region_offset;
  // Bytes of the program, where there is no region.
  void *data;
  // How many bytes.
  size_t len;
} netvm_piece;

// An operation has ended.
typedef struct netvm_completion {
  // `sizeof(struct netvm_completion)`.
  size_t size;
  // What the program gave with it.
  void *context;
  // The old value of an atomic's word.
  uint64_t value;
  // Its number.
  uint32_t op;
  // How it has ended: 0 or a negative errno.
  int32_t result;
  // The status of a card or a driver behind that: NETVM_STATUS_..., or 0.
  uint32_t status;
  // Not used; 0.
  uint32_t reserved;
} netvm_completion;

// How to open a channel or a shared queue. What is 0 is left to the library.
typedef struct netvm_channel_options {
  // `sizeof(struct netvm_channel_options)`.
  size_t size;
  // Size of the largest message in bytes.
  uint64_t message_bytes;
  // How many messages may wait or be under way.
  uint32_t capacity;
  // How many entries the receiver of a channel gives back at a time.
  uint32_t refill;
  // The event-count notification of the receiver's port that says that a message has come.
  uint32_t notification;
  // NETVM_CHANNEL_...
  uint32_t flags;
  // The node that may join, with NETVM_CHANNEL_NODE.
  uint16_t node;
  // Its port, with NETVM_CHANNEL_PORT.
  uint16_t port;
  // Not used; 0.
  uint32_t reserved;
} netvm_channel_options;

// What an end of a channel or of a shared queue is, and has done.
typedef struct netvm_channel_info {
  // `sizeof(struct netvm_channel_info)`.
  size_t size;
  // Size of the largest message in bytes.
  uint64_t message_bytes;
  // Messages sent or received.
  uint64_t messages;
  // How often a call found nothing to receive, or no room to send, and waited.
  uint64_t waits;
  // How often it looked whether the other side still is there.
  uint64_t looks;
  // Replenishments sent, or found to have come.
  uint64_t replenishments;
  // Of a sender: messages that the receiver is not known to have taken.
  uint64_t outstanding;
  // Of a receiver of a shared queue: places whose messages could not be put there.
  uint64_t skipped;
  // Of a receiver: the notification that says that a message has come.
  uint32_t notification;
  // Of a receiver of a shared queue: how many messages it has room for.
  uint32_t capacity;
} netvm_channel_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The last error of this thread in words, which say what to do about it. Never NULL; valid until the thread's next error.
const char *netvm_error_message(void);

// The status of a card or a driver behind the last error of this thread: NETVM_STATUS_..., or 0 where there is none.
uint32_t netvm_error_status(void);

// The operation that failed, if the last error of this thread is that: it may be one that was posted earlier. -ENODATA if
// not.
int netvm_error_failure(struct netvm_failure *failure);

// A status in words, into `text`, which has room for `size` bytes; 128 are enough. -EINVAL if there is no such status.
int netvm_status_text(uint32_t status,
                      char *text,
                      size_t size);

// The version of the library, such as "0.1.0".
const char *netvm_version(void);

// Opens a node by its choice: "auto", "soft", "soft:NAME" for one that others find, "soft://ADDRESS:PORT" for one with UDP,
// "soft://ADDRESS:PORT?key-file=FILE", "device:0" for the kernel's card. NULL is "auto": what the variable NETVM_NODE says, or the
// kernel's card if there is one, or the software card.
int netvm_node_open(const char *choice,
                    struct netvm_node **node);

// Starts a software card, and so makes this process a node. `options` may be NULL.
int netvm_node_start(const struct netvm_node_options *options, struct netvm_node **node);

// Links a software card to another one: of this machine by its name or by "#" and its number, or anywhere by the address of its
// UDP, such as "udp://10.0.0.7:4800". `peer` gets the other node's number; it may be NULL.
int netvm_node_connect(struct netvm_node *node,
                       const char *name,
                       int64_t timeout_ns,
                       uint16_t *peer);

// The node's number.
int netvm_node_id(struct netvm_node *node, uint16_t *id);

// Whether the link of a software card to a node is up.
int netvm_node_is_up(struct netvm_node *node, uint16_t peer, bool *up);

// The address that the UDP of a software card is bound to, into `address`, which has room for `size` bytes; 64 are enough. -ENOENT
// if it has no UDP.
int netvm_node_udp_address(struct netvm_node *node,
                           char *address,
                           size_t size);

// Lets go of a node. It goes on until everything that was made from it is closed.
int netvm_node_close(struct netvm_node *node);

// Opens a port on a node. `options` may be NULL.
int netvm_port_open(struct netvm_node *node,
                    const struct netvm_port_options *options,
                    struct netvm_port **port);

// The port's number.
int netvm_port_id(struct netvm_port *port, uint16_t *id);

// The number of the port's node.
int netvm_port_node(struct netvm_port *port, uint16_t *node);

// Nanoseconds on the clock that the port's time-outs go by.
int netvm_port_now(struct netvm_port *port, uint64_t *nanoseconds);

// Lets the card work on what waits for it, and does not wait: a program that polls memory, or counts of signals, calls this between
// its looks. Calls that wait do so by themselves.
int netvm_port_progress(struct netvm_port *port);

// What the port has done so far.
int netvm_port_get_stats(struct netvm_port *port, struct netvm_port_stats *stats);

// Closes a port, at any time and in any order with what was made from it: its exports end, remote operations are refused, and calls
// with what is left answer -ESHUTDOWN. Calls under way in other threads that wait for a notification or a message end; a port that is
// in another call closes when that returns.
int netvm_port_close(struct netvm_port *port);

// Makes a region of `len` zeroed bytes.
int netvm_region_alloc(struct netvm_port *port, uint64_t len, struct netvm_region **region);

// Makes a region of memory that the process already has: heap, stack or a file mapping. It must stay mapped until the region and
// everything that uses it is closed. Others may change it at any time.
int netvm_region_adopt(struct netvm_port *port,
                       void *start,
                       uint64_t len,
                       struct netvm_region **region);

// Makes a region of all memory that the process has now and later. An offset in it is an address. It is for local operands alone: what is
// written from, and read into. It is the port's first and only region (-EOPNOTSUPP otherwise, and for all others afterwards); exports of
// it are refused. Memory that a transfer uses must not be freed before that has ended, nor before the port is closed if it was a read that
// has failed.
int netvm_region_adopt_all(struct netvm_port *port,
                           struct netvm_region **region);

// Where the program sees the region: the address of its first byte, valid until the region is closed. Remote nodes may change
// what is there at any time. -EOPNOTSUPP where the process does not see it, and of a region of all memory.
int netvm_region_data(struct netvm_region *region,
                      void **data);

// Its length in bytes, as it was asked for.
int netvm_region_len(struct netvm_region *region, uint64_t *len);

// Copies bytes out of a region.
int netvm_region_read(struct netvm_region *region, uint64_t offset, void *into, size_t len);

// Copies bytes into a region. An aligned 1, 2, 4 or 8 bytes is a single store.
int netvm_region_write(struct netvm_region *region, uint64_t offset, const void *from, size_t len);

// Loads an aligned 32-bit word, with acquire order.
int netvm_region_load32(struct netvm_region *region, uint64_t offset, uint32_t *value);

// Loads an aligned 64-bit word, with acquire order.
int netvm_region_load64(struct netvm_region *region, uint64_t offset, uint64_t *value);

// Stores an aligned 32-bit word, with release order.
int netvm_region_store32(struct netvm_region *region, uint64_t offset, uint32_t value);

// Stores an aligned 64-bit word, with release order.
int netvm_region_store64(struct netvm_region *region, uint64_t offset, uint64_t value);

// Stores `value` in an aligned 32-bit word if that is `expected`; `old` gets what was there and may be NULL. Atomic among the
// programs of this node; words that several nodes compete for are changed by netvm_atomic32() alone.
int netvm_region_compare_swap32(struct netvm_region *region,
                                uint64_t offset,
                                uint32_t expected,
                                uint32_t value,
                                uint32_t *old);

// The same for an aligned 64-bit word.
int netvm_region_compare_swap64(struct netvm_region *region,
                                uint64_t offset,
                                uint64_t expected,
                                uint64_t value,
                                uint64_t *old);

// Lets go of a region. Its memory is given back when nothing uses it any more: no export, and no transfer under way.
int netvm_region_close(struct netvm_region *region);

// Gives a name to a range of a region, so that others can import it. `len` 0 means to the end of the region. `access` NULL: every
// port may read, write and do atomics.
int netvm_export_open(struct netvm_port *port,
                      const char *name,
                      struct netvm_region *region,
                      uint64_t offset,
                      uint64_t len,
                      const struct netvm_access *access,
                      struct netvm_export **export_);

// Ends an export. When this returns no remote operation that it allowed touches the memory any more.
int netvm_export_close(struct netvm_export *export_);

// The export that holds this address of the process, and the offset in it. The handle is another one of the same export, to be closed
// by netvm_export_release(). -ENOENT if there is none.
int netvm_export_find(struct netvm_port *port,
                      uint64_t address,
                      struct netvm_export **export_,
                      uint64_t *offset);

// Lets go of a handle. The export ends with the last handle of it.
int netvm_export_release(struct netvm_export *export_);

// Binds to a name that a port exports. `modes`: the most that is asked for, or 0 for all that is granted. Waits until the name is there;
// with a time-out of 0 it asks once, which is a round trip. The error is that of the last attempt: -ENOENT if there is no such name.
int netvm_import(struct netvm_port *port,
                 uint16_t node,
                 uint16_t exporter,
                 const char *name,
                 uint32_t modes,
                 int64_t timeout_ns,
                 struct netvm_remote **remote);

// Begins an import and does not wait. netvm_pending_remote() gives what it has bound to.
int netvm_begin_import(struct netvm_port *port,
                       uint16_t node,
                       uint16_t exporter,
                       const char *name,
                       uint32_t modes,
                       int64_t timeout_ns,
                       void *context,
                       struct netvm_pending **pending);

// What an import is.
int netvm_remote_get_info(struct netvm_remote *remote, struct netvm_remote_info *info);

// The import that holds this address of another port, and the offset in it. The handle is another one of the same import. -ENOENT if
// there is none.
int netvm_remote_find(struct netvm_port *port,
                      uint16_t node,
                      uint16_t exporter,
                      uint64_t address,
                      struct netvm_remote **remote,
                      uint64_t *offset);

// Lets go of an import. With its last handle it ends, once everything that was written to that node has landed or failed.
int netvm_remote_close(struct netvm_remote *remote);

// Writes `len` bytes of the program to `offset` on. They are copied before the call returns. `notification`: what to signal when they,
// and all that was written before, have landed; 0 for nothing. `op` gets the number by which a later failure is told; it may be NULL.
int netvm_write(struct netvm_remote *remote,
                uint64_t offset,
                const void *from,
                size_t len,
                uint32_t flags,
                uint32_t notification,
                uint32_t *op);

// The same from a region of the port: transferred from where it is. It must not change before the write is done at this node, which
// NETVM_FENCED or netvm_flush_writes() tells.
int netvm_write_region(struct netvm_remote *remote,
                       uint64_t offset,
                       struct netvm_region *region,
                       uint64_t region_offset,
                       size_t len,
                       uint32_t flags,
                       uint32_t notification,
                       uint32_t *op);

// Signals a notification and writes nothing.
int netvm_notify(struct netvm_remote *remote, uint32_t notification, uint32_t flags, uint32_t *op);

// Reads `len` bytes from `offset` on into memory of the program, and waits for them. After an error they are undefined. The only flag is
// NETVM_ORDERED.
int netvm_read(struct netvm_remote *remote,
               uint64_t offset,
               void *into,
               size_t len,
               uint32_t flags);

// Reads into a region of the port, and does not wait: the bytes are there when NETVM_FENCED or netvm_flush_reads() says so.
int netvm_read_region(struct netvm_remote *remote,
                      uint64_t offset,
                      struct netvm_region *region,
                      uint64_t region_offset,
                      size_t len,
                      uint32_t flags,
                      uint32_t *op);

// Begins a write of bytes of the program, which are copied before the call returns, and never waits: -EAGAIN if there is no room. The
// pending operation ends when the write is done at this node.
int netvm_begin_write(struct netvm_remote *remote,
                      uint64_t offset,
                      const void *from,
                      size_t len,
                      uint32_t flags,
                      uint32_t notification,
                      void *context,
                      struct netvm_pending **pending);

// The same from a region of the port, which must not change before the operation has ended.
int netvm_begin_write_region(struct netvm_remote *remote,
                             uint64_t offset,
                             struct netvm_region *region,
                             uint64_t region_offset,
                             size_t len,
                             uint32_t flags,
                             uint32_t notification,
                             void *context,
                             struct netvm_pending **pending);

// Begins a read into a region of the port, and never waits: -EAGAIN if there is no room. The pending operation ends when the bytes are
// there. The only flag is NETVM_ORDERED.
int netvm_begin_read_region(struct netvm_remote *remote,
                            uint64_t offset,
                            struct netvm_region *region,
                            uint64_t region_offset,
                            size_t len,
                            uint32_t flags,
                            void *context,
                            struct netvm_pending **pending);

// Writes `count` pieces as one operation: with one number, one end, one failure. Bytes of the program are copied before the call returns;
// regions must not change before the write is done at this node. Every piece is checked before any is posted: one that is refused, or
// with NETVM_NOWAIT a lack of room, keeps all back. With NETVM_ORDERED the pieces land one after the other. `notification`: what to signal
// at the port of the last piece when all of them, and all that was written before, have landed; 0 for nothing. `op` may be NULL.
int netvm_write_vector(struct netvm_port *port,
                       const struct netvm_piece *pieces,
                       size_t count,
                       uint32_t flags,
                       uint32_t notification,
                       uint32_t *op);

// Reads `count` pieces as one operation. Into regions, it does not wait: the bytes are there when NETVM_FENCED or netvm_flush_reads() says
// so. Into memory of the program, which must not overlap (-EINVAL), it waits for them, and its only flag is NETVM_ORDERED. The pieces of a
// vector are all of one kind (-EINVAL). `op` may be NULL; it gets 0 where the call has waited.
int netvm_read_vector(struct netvm_port *port,
                      const struct netvm_piece *pieces,
                      size_t count,
                      uint32_t flags,
                      uint32_t *op);

// Begins what netvm_write_vector() does, and never waits: -EAGAIN if there is no room for all of it, -EMSGSIZE if there never is. The pending
// operation ends when the write of all pieces is done at this node.
int netvm_begin_write_vector(struct netvm_port *port,
                             const struct netvm_piece *pieces,
                             size_t count,
                             uint32_t flags,
                             uint32_t notification,
                             void *context,
                             struct netvm_pending **pending);

// Begins a read of pieces into regions, and never waits, as netvm_begin_write_vector(). The pending operation ends when the bytes of all pieces
// are there. The only flag is NETVM_ORDERED.
int netvm_begin_read_vector(struct netvm_port *port,
                            const struct netvm_piece *pieces,
                            size_t count,
                            uint32_t flags,
                            void *context,
                            struct netvm_pending **pending);

// Returns when every earlier write of the port has left this node: what they were made from may change.
int netvm_flush_writes(struct netvm_port *port);

// Returns when every earlier read of the port has ended: its bytes are there.
int netvm_flush_reads(struct netvm_port *port);

// Returns when every earlier operation to a node has come so far: NETVM_RECEIVED or NETVM_LANDED. If one of them has failed, it says
// which (netvm_error_failure()). After -EAGAIN or -ETIMEDOUT they are still under way.
int netvm_flush(struct netvm_port *port,
                uint16_t node,
                uint32_t level,
                int64_t timeout_ns);

// Begins the same and never waits: -EAGAIN if there is no room. It is for what was posted before.
int netvm_begin_flush(struct netvm_port *port,
                      uint16_t node,
                      uint32_t level,
                      void *context,
                      struct netvm_pending **pending);

// After a call of this thread that has answered -EAGAIN: waits until the port may have room for it. Another thread may take that first.
int netvm_wait_room(struct netvm_port *port,
                    int64_t timeout_ns);

// Waits for the end of an operation; how that was is what the call returns. -EAGAIN (for a time-out of 0) or -ETIMEDOUT: it is still under
// way. An operation that has ended answers the same again.
int netvm_pending_wait(struct netvm_pending *pending,
                       int64_t timeout_ns);

// The answer of what has ended well. Of an atomic: the old value of its word. Of what was begun with a lock or a monitor: 1 if a process has died
// that may have held it. Of a semaphore: the value that was found. Of a wait queue or a condition: 1 if it was reset. -EAGAIN while it is under
// way, -ENODATA of another operation.
int netvm_pending_value(struct netvm_pending *pending,
                        uint64_t *value);

// What an import that has ended well has bound to, once. -EAGAIN while it is under way, -ENODATA if it was taken before, or of another
// operation.
int netvm_pending_remote(struct netvm_pending *pending,
                         struct netvm_remote **remote);

// The word that the program gave with the operation.
int netvm_pending_context(struct netvm_pending *pending, void **context);

// The operation's number, by which struct netvm_failure names it; 0 of what is no operation of the card: an import, or what takes a lock.
int netvm_pending_op(struct netvm_pending *pending,
                     uint32_t *op);

// Lets go of an operation. That takes nothing back: it goes on, and if it fails, the next call to the same node says so. An import is
// given up. What takes a lock, a token or a monitor is given up with its participant, which is to be closed: what it still gets it gives to the
// next.
int netvm_pending_close(struct netvm_pending *pending);

// Makes a port a part of an event loop: its descriptor becomes readable when something has happened there. A port has one of these at a
// time.
int netvm_events_open(struct netvm_port *port,
                      struct netvm_events **events);

// The descriptor, for poll(2) and epoll(7), until the handle is closed. The program only polls it.
int netvm_events_fd(struct netvm_events *events, int *fd);

// Empties the descriptor. From now on a notification, a failure, a message, or the end of an operation under way makes it readable. What
// happened before does not: so arm, then look, and poll if there is nothing.
int netvm_events_arm(struct netvm_events *events);

// Takes the port out of the event loop.
int netvm_events_close(struct netvm_events *events);

// Makes a completion queue for operations of a port.
int netvm_cq_open(struct netvm_port *port, struct netvm_cq **cq);

// Moves an operation into a completion queue. Its handle ends by that. -EXDEV for an operation of another port, which goes on by itself;
// -EINVAL for an import, which stays as it is.
int netvm_cq_add(struct netvm_cq *cq,
                 struct netvm_pending *pending);

// Waits for the next operation that ends. -ENODATA if the queue holds none.
int netvm_cq_next(struct netvm_cq *cq, int64_t timeout_ns, struct netvm_completion *completion);

// How many operations the queue holds, those included that have ended and were not taken out.
int netvm_cq_len(struct netvm_cq *cq, size_t *len);

// Ends a completion queue. That takes nothing back: its operations go on.
int netvm_cq_close(struct netvm_cq *cq);

// Changes an aligned 32-bit word by NETVM_FETCH_ADD and the like, and waits for the answer: one round trip. `old` gets what was there; it
// may be NULL. Flags: NETVM_ORDERED, NETVM_REGARDLESS.
int netvm_atomic32(struct netvm_remote *remote,
                   uint64_t offset,
                   uint32_t what,
                   uint32_t operand,
                   uint32_t compare,
                   uint32_t flags,
                   uint32_t *old);

// The same for an aligned 64-bit word.
int netvm_atomic64(struct netvm_remote *remote,
                   uint64_t offset,
                   uint32_t what,
                   uint64_t operand,
                   uint64_t compare,
                   uint32_t flags,
                   uint64_t *old);

// Begins an atomic on an aligned 32-bit word and never waits: -EAGAIN if there is no room. netvm_pending_value() gives the answer.
int netvm_begin_atomic32(struct netvm_remote *remote,
                         uint64_t offset,
                         uint32_t what,
                         uint32_t operand,
                         uint32_t compare,
                         uint32_t flags,
                         void *context,
                         struct netvm_pending **pending);

// The same for an aligned 64-bit word.
int netvm_begin_atomic64(struct netvm_remote *remote,
                         uint64_t offset,
                         uint32_t what,
                         uint64_t operand,
                         uint64_t compare,
                         uint32_t flags,
                         void *context,
                         struct netvm_pending **pending);

// Changes an aligned number of the type `type` (NETVM_INT8 and the like) by NETVM_MIN and the like, and waits for the answer: one round trip. `operand`,
// `compare` and `old` are places of numbers of the type; `compare` counts for NETVM_SWAP_EQ and the like alone and may be NULL elsewhere. `old` gets what was
// there; it may be NULL. Flags: NETVM_ORDERED, NETVM_REGARDLESS.
int netvm_atomic_number(struct netvm_remote *remote,
                        uint64_t offset,
                        uint32_t what,
                        uint32_t type,
                        const void *operand,
                        const void *compare,
                        uint32_t flags,
                        void *old);

// Begins an atomic on an aligned number and never waits: -EAGAIN if there is no room. netvm_pending_value() gives the bits of the answer, in the
// lowest bytes.
int netvm_begin_atomic_number(struct netvm_remote *remote,
                              uint64_t offset,
                              uint32_t what,
                              uint32_t type,
                              const void *operand,
                              const void *compare,
                              uint32_t flags,
                              void *context,
                              struct netvm_pending **pending);

// Waits until a signal of an event-count notification (1 to 895) is pending. `pending` gets how many are; it may be NULL.
int netvm_notification_wait(struct netvm_port *port,
                            uint32_t number,
                            int64_t timeout_ns,
                            uint32_t *pending);

// How many signals are pending.
int netvm_notification_pending(struct netvm_port *port, uint32_t number, uint32_t *pending);

// Acknowledges one signal: it has been handled. -ENOMSG if none is pending.
int netvm_notification_ack(struct netvm_port *port, uint32_t number);

// Acknowledges the signals that are pending, at most `most`. `acknowledged` gets how many these were; it may be NULL.
int netvm_notification_ack_up_to(struct netvm_port *port,
                                 uint32_t number,
                                 uint32_t most,
                                 uint32_t *acknowledged);

// Waits for the next number of the port's notification queue: one-shot notifications (from 1024 up) in the order in which they were sent,
// and event-count ones that have pending signals.
int netvm_notification_next(struct netvm_port *port,
                            int64_t timeout_ns,
                            uint32_t *number);

// Makes a queue in the port's memory and exports it under this name, for one sender to join. `options` may be NULL.
int netvm_receiver_open(struct netvm_port *port,
                        const char *name,
                        const struct netvm_channel_options *options,
                        struct netvm_receiver **receiver);

// Receives a message into a place of `size` bytes. `len` gets its length; it may be NULL. A message that does not fit is lost (-EMSGSIZE).
// -EPIPE: the sender has left, and everything was received. -ECONNRESET: it has died, or a message was lost.
int netvm_receiver_recv(struct netvm_receiver *receiver,
                        void *into,
                        size_t size,
                        size_t *len,
                        int64_t timeout_ns);

// The port that has joined as the sender. -ENODATA if none has.
int netvm_receiver_sender(struct netvm_receiver *receiver, uint16_t *node, uint16_t *port);

// What the receiver is, and has done.
int netvm_receiver_get_info(struct netvm_receiver *receiver, struct netvm_channel_info *info);

// Ends a channel: the sender is told, and what was not received is lost. Close it before its port.
int netvm_receiver_close(struct netvm_receiver *receiver);

// Joins the channel of this name at a port, as its only sender. Waits until the channel is there.
int netvm_sender_join(struct netvm_port *port,
                      uint16_t node,
                      uint16_t at,
                      const char *name,
                      int64_t timeout_ns,
                      struct netvm_sender **sender);

// Sends a message, once there is room for it. Its bytes are copied before the call returns. -EPIPE: the receiver has left.
int netvm_sender_send(struct netvm_sender *sender,
                      const void *from,
                      size_t len,
                      int64_t timeout_ns);

// The same from a region of the port: transferred from where it is. It must not change before netvm_flush_writes().
int netvm_sender_send_region(struct netvm_sender *sender,
                             struct netvm_region *region,
                             uint64_t offset,
                             size_t len,
                             int64_t timeout_ns);

// Waits until everything that was sent has landed. It may not have been received yet.
int netvm_sender_flush(struct netvm_sender *sender);

// What the sender is, and has done.
int netvm_sender_get_info(struct netvm_sender *sender, struct netvm_channel_info *info);

// Ends the channel and waits until everything that was sent has landed, with the word that it was all. The handle ends in any case, but
// with -EBUSY.
int netvm_sender_close(struct netvm_sender *sender);

// Makes an empty set for receivers of a port.
int netvm_receiver_set_open(struct netvm_port *port, struct netvm_receiver_set **receivers);

// Moves a receiver into a set. Its handle ends by that, also if it is a receiver of another port, which is refused and closed. `index` gets
// the number under which the set names it.
int netvm_receiver_set_add(struct netvm_receiver_set *receivers,
                           struct netvm_receiver *receiver,
                           size_t *index);

// Waits until one of the receivers has a message, or its end, to tell: its next receive will not wait.
int netvm_receiver_set_wait(struct netvm_receiver_set *receivers,
                            int64_t timeout_ns,
                            size_t *index);

// As netvm_receiver_recv(), from the receiver with this number.
int netvm_receiver_set_recv(struct netvm_receiver_set *receivers,
                            size_t index,
                            void *into,
                            size_t size,
                            size_t *len,
                            int64_t timeout_ns);

// Takes a receiver out of a set. It gets a handle again.
int netvm_receiver_set_remove(struct netvm_receiver_set *receivers,
                              size_t index,
                              struct netvm_receiver **receiver);

// Ends a set, and the channels of all its receivers.
int netvm_receiver_set_close(struct netvm_receiver_set *receivers);

// Makes a shared queue in the port's memory and exports it under this name. `options` may be NULL. A port has one in its life.
int netvm_shared_receiver_open(struct netvm_port *port,
                               const char *name,
                               const struct netvm_channel_options *options,
                               struct netvm_shared_receiver **receiver);

// Receives a message into a place of `size` bytes. `len`, `node` and `from` get its length and the port that has sent it; they may be NULL.
// A message that does not fit is lost (-EMSGSIZE).
int netvm_shared_receiver_recv(struct netvm_shared_receiver *receiver,
                               void *into,
                               size_t size,
                               size_t *len,
                               uint16_t *node,
                               uint16_t *from,
                               int64_t timeout_ns);

// What the receiver is, and has done.
int netvm_shared_receiver_get_info(struct netvm_shared_receiver *receiver,
                                   struct netvm_channel_info *info);

// Ends a shared queue.
int netvm_shared_receiver_close(struct netvm_shared_receiver *receiver);

// Joins the shared queue of this name at a port. Waits until it is there.
int netvm_shared_sender_join(struct netvm_port *port,
                             uint16_t node,
                             uint16_t at,
                             const char *name,
                             int64_t timeout_ns,
                             struct netvm_shared_sender **sender);

// Sends a message and returns when it has its place: one round trip. While the queue is full it is sent again; -ENOBUFS when there was no
// room in time.
int netvm_shared_sender_send(struct netvm_shared_sender *sender,
                             const void *from,
                             size_t len,
                             int64_t timeout_ns);

// Sends a message and does not wait to hear whether it has a place. If it gets none, neither does what this port sends to queues of the
// node after it, until a later call has told (NETVM_STATUS_NO_PLACE). `op` gets its number; it may be NULL.
int netvm_shared_sender_post(struct netvm_shared_sender *sender,
                             const void *from,
                             size_t len,
                             uint32_t *op);

// Size of the largest message in bytes.
int netvm_shared_sender_message_bytes(struct netvm_shared_sender *sender, uint64_t *message_bytes);

// Leaves a shared queue.
int netvm_shared_sender_close(struct netvm_shared_sender *sender);

// Ends what has its home there. Participants get an error, at the latest when they next need the home.
int netvm_home_close(struct netvm_home *home);

// Makes a lock that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
int netvm_lock_create(struct netvm_port *port,
                      const char *name,
                      const struct netvm_access *access,
                      struct netvm_home **home);

// Takes part in a lock: one participant, which holds it or waits for it once at a time.
int netvm_lock_join(struct netvm_port *port,
                    uint16_t node,
                    uint16_t exporter,
                    const char *name,
                    int64_t timeout_ns,
                    struct netvm_lock **lock);

// Takes the lock. NETVM_FOREVER: waits for it, first come first served. Otherwise it tries again and again, and those that wait come first;
// -EAGAIN or -ETIMEDOUT if that was in vain. `owner_died` gets whether a process has died that may have held it, so that what it protects may
// be half changed; it may be NULL. -EDEADLK: this participant holds it.
int netvm_lock_acquire(struct netvm_lock *lock,
                       int64_t timeout_ns,
                       bool *owner_died);

// Begins to wait for the lock, as netvm_lock_acquire() does with NETVM_FOREVER, and does not wait for it. `lock` is away (-EBUSY) until
// netvm_pending_wait() answers 0: then it is held. netvm_pending_value() tells whether a process has died that may have held it. After an error,
// and when the pending call is closed before its end, this participant is gone (-EIO). It costs a thread while it is under way.
int netvm_lock_begin_acquire(struct netvm_lock *lock,
                             void *context,
                             struct netvm_pending **pending);

// Lets go of the lock. Everything that this port has written meanwhile has landed when the next holder gets it. A write that did not land is
// told; the lock is free all the same. -EPERM: it is not held.
int netvm_lock_release(struct netvm_lock *lock);

// Whether a participant waits for the lock that this one holds.
int netvm_lock_is_asked_for(struct netvm_lock *lock, bool *asked);

// Leaves a lock, and lets go of it if it is held.
int netvm_lock_close(struct netvm_lock *lock);

// Makes an asymmetric lock that has its home at this port, under this name. Remote participants need to read and do atomics; `access` NULL: all
// ports may. `local_budget`, `remote_budget`: how many of each class may follow one another while the other waits; 0: 5.
int netvm_alock_create(struct netvm_port *port,
                       const char *name,
                       const struct netvm_access *access,
                       uint32_t local_budget,
                       uint32_t remote_budget,
                       struct netvm_alock_home **home);

// A participant for a thread of the process that is the lock's home.
int netvm_alock_local(struct netvm_alock_home *home, struct netvm_alock **alock);

// A participant that reaches the lock through its card.
int netvm_alock_join(struct netvm_port *port,
                     uint16_t node,
                     uint16_t exporter,
                     const char *name,
                     int64_t timeout_ns,
                     struct netvm_alock **alock);

// Takes the lock; waits for it as long as it takes. -EDEADLK: this participant holds it. -ENOTRECOVERABLE: a member has died, and the lock is
// lost.
int netvm_alock_acquire(struct netvm_alock *alock);

// Begins what netvm_alock_acquire() does, and does not wait for it: as netvm_lock_begin_acquire(). It has no answer for netvm_pending_value() but 0.
int netvm_alock_begin_acquire(struct netvm_alock *alock,
                              void *context,
                              struct netvm_pending **pending);

// What the port writes to this node under the lock, too, is to be there for the next holder. The lock's own node needs no mention.
int netvm_alock_covers(struct netvm_alock *alock,
                       uint16_t node);

// Whether a participant of the same class waits for the lock that this one holds.
int netvm_alock_is_asked_for(struct netvm_alock *alock, bool *asked);

// Lets go of the lock. -EPERM: it is not held.
int netvm_alock_release(struct netvm_alock *alock);

// Leaves an asymmetric lock, and lets go of it if it is held.
int netvm_alock_close(struct netvm_alock *alock);

// Ends an asymmetric lock, once its local participants are closed.
int netvm_alock_home_close(struct netvm_alock_home *home);

// Makes a semaphore of this value that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all
// ports may.
int netvm_semaphore_create(struct netvm_port *port,
                           const char *name,
                           uint32_t value,
                           const struct netvm_access *access,
                           struct netvm_home **home);

// Takes part in a semaphore: one participant, which waits once at a time.
int netvm_semaphore_join(struct netvm_port *port,
                         uint16_t node,
                         uint16_t exporter,
                         const char *name,
                         int64_t timeout_ns,
                         struct netvm_semaphore **semaphore);

// Takes a token. NETVM_FOREVER: waits for one. Otherwise it tries again and again, and those that wait come first; -EAGAIN or -ETIMEDOUT if that
// was in vain.
int netvm_semaphore_wait(struct netvm_semaphore *semaphore,
                         int64_t timeout_ns);

// Begins to wait for a token, as netvm_semaphore_wait() does with NETVM_FOREVER, and does not wait for it. `semaphore` is away (-EBUSY) until
// netvm_pending_wait() answers 0: then the token is there. netvm_pending_value() gives the value that it found. After an error, and when the pending
// call is closed before its end, this participant is gone (-EIO). It costs a thread while it is under way.
int netvm_semaphore_begin_wait(struct netvm_semaphore *semaphore,
                               void *context,
                               struct netvm_pending **pending);

// Gives a token: to the first waiter, or to the count. `value` gets the value after that; it may be NULL.
int netvm_semaphore_signal(struct netvm_semaphore *semaphore,
                           uint32_t *value);

// Leaves a semaphore.
int netvm_semaphore_close(struct netvm_semaphore *semaphore);

// Makes a wait queue that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
int netvm_wait_queue_create(struct netvm_port *port,
                            const char *name,
                            const struct netvm_access *access,
                            struct netvm_home **home);

// Takes part in a wait queue: one participant, which waits once at a time.
int netvm_wait_queue_join(struct netvm_port *port,
                          uint16_t node,
                          uint16_t exporter,
                          const char *name,
                          int64_t timeout_ns,
                          struct netvm_wait_queue **queue);

// Stands in the queue, at its end. A signal from now on is not lost. -EDEADLK: it stands there already.
int netvm_wait_queue_insert(struct netvm_wait_queue *queue);

// Waits to be woken. After -EAGAIN or -ETIMEDOUT the place in the queue is still there. `reset` gets whether the queue has lost a process that stood
// in it, and has let all others out: look at what is waited for, and stand in it again; it may be NULL. -EPERM: it does not stand in the queue.
int netvm_wait_queue_wait(struct netvm_wait_queue *queue,
                          int64_t timeout_ns,
                          bool *reset);

// Begins to stand in the queue and to wait to be woken, and waits for neither. `queue` is away (-EBUSY) until netvm_pending_wait() answers 0.
// netvm_pending_value() tells whether the queue was reset, as netvm_wait_queue_wait() does. Nothing tells when it stands there: a program that has to
// say first that it will wait calls netvm_wait_queue_insert(). After an error, and when the pending call is closed before its end, this participant is
// gone (-EIO). It costs a thread while it is under way.
int netvm_wait_queue_begin_wait(struct netvm_wait_queue *queue,
                                void *context,
                                struct netvm_pending **pending);

// Wakes the first waiter. `woken` gets whether there was one; it may be NULL. A participant that stands in the queue cannot (-EDEADLK).
int netvm_wait_queue_signal(struct netvm_wait_queue *queue,
                            bool *woken);

// Leaves a wait queue. One that stands there lets all others out as well: no participant can leave a queue without the help of the others in it.
int netvm_wait_queue_close(struct netvm_wait_queue *queue);

// Makes a monitor that has its home at this port, under this name. Participants need to read and do atomics; `access` NULL: all ports may.
int netvm_monitor_create(struct netvm_port *port,
                         const char *name,
                         const struct netvm_access *access,
                         struct netvm_home **home);

// Makes a condition, as netvm_monitor_create() makes a monitor.
int netvm_condition_create(struct netvm_port *port,
                           const char *name,
                           const struct netvm_access *access,
                           struct netvm_home **home);

// Takes part in a monitor.
int netvm_monitor_join(struct netvm_port *port,
                       uint16_t node,
                       uint16_t exporter,
                       const char *name,
                       int64_t timeout_ns,
                       struct netvm_monitor **monitor);

// Takes part in a condition.
int netvm_condition_join(struct netvm_port *port,
                         uint16_t node,
                         uint16_t exporter,
                         const char *name,
                         int64_t timeout_ns,
                         struct netvm_condition **condition);

// Enters a monitor; waits while another process is inside. `owner_died` gets whether a process has died that may have been inside; it may be NULL.
// -EDEADLK: this participant is inside.
int netvm_monitor_enter(struct netvm_monitor *monitor,
                        bool *owner_died);

// Begins what netvm_monitor_enter() does, and does not wait for it. `monitor` is away (-EBUSY) until netvm_pending_wait() answers 0: then the process
// is inside. netvm_pending_value() tells whether a process has died that may have been inside. After an error, and when the pending call is closed
// before its end, this participant is gone (-EIO). It costs a thread while it is under way.
int netvm_monitor_begin_enter(struct netvm_monitor *monitor,
                              void *context,
                              struct netvm_pending **pending);

// Begins what netvm_monitor_wait() does, and does not wait for it. `monitor` and `condition` are away (-EBUSY) until netvm_pending_wait() answers 0:
// then the process is inside again. netvm_pending_value() tells whether the condition was reset. After an error the process is not inside, and both
// participants are gone (-EIO), as when the pending call is closed before its end. -EPERM: this participant is not inside.
int netvm_monitor_begin_wait(struct netvm_monitor *monitor,
                             struct netvm_condition *condition,
                             void *context,
                             struct netvm_pending **pending);

// Leaves the monitor until the condition is signalled, and comes in again. Others may have been inside meanwhile, and the wait may end for no reason:
// look at what is waited for in a loop. `reset` gets whether the condition has lost a waiter, and let all others out; it may be NULL. -EPERM: this
// participant is not inside.
int netvm_monitor_wait(struct netvm_monitor *monitor,
                       struct netvm_condition *condition,
                       bool *reset);

// Lets the first waiter of a condition come in when it can. `woken` gets whether there was one; it may be NULL. The caller is inside of the monitor.
int netvm_condition_signal(struct netvm_condition *condition,
                           bool *woken);

// Leaves the monitor. -EPERM: this participant is not inside.
int netvm_monitor_leave(struct netvm_monitor *monitor);

// Takes no part in a monitor any more, and leaves it if it is inside.
int netvm_monitor_close(struct netvm_monitor *monitor);

// Takes no part in a condition any more.
int netvm_condition_close(struct netvm_condition *condition);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NETVM_NETVM_H */
