// SPDX-License-Identifier: GPL-2.0
/*
 * Event counts to sleep on, kernel threads, time, randomness. C, because wait_event and its
 * relations are macros, and 6.12's `kernel` crate has neither kthreads nor timed waits with
 * nanoseconds.
 *
 * An event count only grows. A waiter reads it, looks at what it waits for, then sleeps until the
 * count is another: no signal is lost in between.
 */
#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/eventfd.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/random.h>
#include <linux/ratelimit.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/wait.h>

#include "shim.h"

struct nv_event {
	wait_queue_head_t waiting;
	atomic_t count;
};

/* C: wait queues are initialised by a macro. */
struct nv_event *nv_event_new(void)
{
	struct nv_event *event = kzalloc(sizeof(*event), GFP_KERNEL);

	if (event)
		init_waitqueue_head(&event->waiting);
	return event;
}

/* C: as above. */
void nv_event_free(struct nv_event *event)
{
	kfree(event);
}

/* C: as above. */
u32 nv_event_count(const struct nv_event *event)
{
	return atomic_read_acquire(&event->count);
}

/* C: wake_up_all is a macro. Callable from an interrupt. */
void nv_event_signal(struct nv_event *event)
{
	atomic_inc_return(&event->count);
	wake_up_all(&event->waiting);
}

static ktime_t nv_timeout(u64 nanos)
{
	return nanos >= KTIME_MAX ? KTIME_MAX : (ktime_t)nanos;
}

static int nv_wait_result(int err)
{
	return !err ? NV_WAIT_NEWS : err == -ETIME ? NV_WAIT_TIME : NV_WAIT_SIGNAL;
}

/* C: wait_event_* are macros. */
int nv_event_wait(struct nv_event *event, u32 seen, u64 nanos, bool interruptible)
{
	ktime_t timeout = nv_timeout(nanos);

	if (nv_event_count(event) != seen)
		return NV_WAIT_NEWS;
	if (!nanos)
		return NV_WAIT_TIME;
	if (interruptible)
		return nv_wait_result(__wait_event_hrtimeout(event->waiting,
							     nv_event_count(event) != seen, timeout,
							     TASK_INTERRUPTIBLE));
	return nv_wait_result(__wait_event_hrtimeout(event->waiting, nv_event_count(event) != seen,
						     timeout, TASK_UNINTERRUPTIBLE));
}

/* C: as above. For a thread of the module: the end of its life, or a rest, is news, too. */
int nv_thread_wait(struct nv_event *event, u32 seen, u64 nanos)
{
	ktime_t timeout = nv_timeout(nanos);

	if (nv_event_count(event) != seen || kthread_should_stop() || kthread_should_park())
		return NV_WAIT_NEWS;
	if (!nanos)
		return NV_WAIT_TIME;
	return nv_wait_result(__wait_event_hrtimeout(event->waiting,
						     nv_event_count(event) != seen ||
							     kthread_should_stop() ||
							     kthread_should_park(),
						     timeout, TASK_IDLE));
}

/* C: kthread_run is a macro. NULL where no thread can be had. */
struct task_struct *nv_thread_start(int (*body)(void *), void *with, const char *name, u32 number)
{
	struct task_struct *thread = kthread_create(body, with, "%s/%u", name, number);

	if (IS_ERR(thread))
		return NULL;
	/* It may end before it is asked to. */
	get_task_struct(thread);
	wake_up_process(thread);
	return thread;
}

/* C: as above. Returns when it has ended. */
void nv_thread_stop(struct task_struct *thread)
{
	kthread_stop_put(thread);
}

/* C: no binding. */
bool nv_thread_should_stop(void)
{
	return kthread_should_stop();
}

/* C: no binding. */
bool nv_thread_should_rest(void)
{
	return kthread_should_park();
}

/* C: no binding. Returns when the rest is over, or the thread is to end. */
void nv_thread_rest(void)
{
	kthread_parkme();
}

/* C: the crate's clock is not monotonic nanoseconds as u64 in 6.12. */
u64 nv_now(void)
{
	return ktime_get_ns();
}

/* C: inline. From the kernel's cryptographic generator. */
u64 nv_random(void)
{
	return get_random_u64();
}

/* C: no binding. Until the generator has been seeded. */
void nv_random_wait(void)
{
	wait_for_random_bytes();
}

/* C: inline. A few microseconds, for a wait for one DMA to end. */
void nv_pause(bool may_sleep)
{
	if (may_sleep)
		usleep_range(2, 20);
	else
		udelay(2);
}

/* C: rate limits are structures with initialisers. */
bool nv_may_log(void)
{
	static DEFINE_RATELIMIT_STATE(limit, 5 * HZ, 10);

	return __ratelimit(&limit);
}

/* C: no eventfd bindings. NULL where it is none. */
struct eventfd_ctx *nv_eventfd_get(int fd)
{
	struct eventfd_ctx *eventfd = eventfd_ctx_fdget(fd);

	return IS_ERR(eventfd) ? NULL : eventfd;
}

/* C: as above. */
void nv_eventfd_put(struct eventfd_ctx *eventfd)
{
	eventfd_ctx_put(eventfd);
}

/* C: as above. Callable with a spinlock held. */
void nv_eventfd_signal(struct eventfd_ctx *eventfd)
{
	eventfd_signal(eventfd);
}
