// SPDX-License-Identifier: GPL-2.0
/*
 * Has a device of the name that the first card's would get. So that one cannot be made, which nothing
 * outside of the kernel could bring about.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>

static const struct file_operations operations = { .owner = THIS_MODULE };

static struct miscdevice taken = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "netvm0",
	.fops = &operations,
};
module_misc_device(taken);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Takes the name of a NetVM device");
