// SPDX-License-Identifier: GPL-2.0
/*
 * Threads that serve a port. C, because 6.12's `kernel` crate has neither kthreads nor signals.
 *
 * Such a thread may wait for a page of a file whose server is silent. So nothing waits for it: it
 * is told to end, and SIGKILL ends the killable part of its wait. It holds the module and its own
 * reference to what it serves until it returns.
 */
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

#include "shim.h"

static int nv_serve(void *port)
{
	allow_signal(SIGKILL);
	nv_rs_serve(port);
	/* The module may go with this reference: its text is not returned to. */
	module_put_and_kthread_exit(0);
}

/* C: kthread_create is a macro. NULL where no thread can be had; otherwise it owns `port`. */
struct task_struct *nv_servant_start(void *port, u32 number)
{
	struct task_struct *thread;

	if (!try_module_get(THIS_MODULE))
		return NULL;
	thread = kthread_create(nv_serve, port, "netvm-port/%u", number);
	if (IS_ERR(thread)) {
		module_put(THIS_MODULE);
		return NULL;
	}
	/* It may end before it is told to. */
	get_task_struct(thread);
	wake_up_process(thread);
	return thread;
}

/* C: no binding. Does not wait. */
void nv_servant_end(struct task_struct *thread)
{
	send_sig(SIGKILL, thread, 1);
	put_task_struct(thread);
}
