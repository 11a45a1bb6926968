//! Nodes where a sandbox or a limit takes something away: they work, or say what is missing and what to do. Each scene is a process of
//! its own, because it gives away what it cannot get back.

mod support;

use std::ffi::CString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use netvm::{Access, Port, PortConfig, PortId};
use netvm_process::SoftNode;

use support::{Player, scene, scene_command, status, told};

/// Node numbers of this program, which no other test has: two for each scene.
const NODES: u16 = 200;
const FIRST: u16 = 190;
const PATIENCE: Duration = Duration::from_secs(5);
const SERVED: PortId = PortId(7);

/// Not a test: what the other processes do.
#[test]
fn play() {
    match scene().as_deref() {
        None => {}
        Some("forbidden") => {
            forbid(&told_numbers("NETVM_CALLS"));
            say(FIRST);
        }
        Some("no-proc") => {
            assert!(std::fs::read_to_string("/proc/self/status").is_err());
            say(FIRST + 2);
            println!("\nlisted: {:?}", netvm_process::soft::running().map(drop));
        }
        Some("few-files") => few_files(),
        Some("little-space") => {
            let room = told("NETVM_ROOM").parse::<u64>().unwrap() << 20;
            limit(libc::RLIMIT_AS, status("VmSize") * 1024 + room);
            say(FIRST + 6);
        }
        Some(other) => panic!("no scene {other}"),
    }
}

fn told_numbers(what: &str) -> Vec<libc::c_long> {
    told(what)
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect()
}

fn say(first: u16) {
    match exchange(first) {
        Ok(()) => println!("\nresult: it works"),
        Err(error) => println!("\nresult: {error}"),
    }
}

/// All that two nodes do together: a link, memory of the card's and of the program's, writes, reads, atomics and notifications.
fn exchange(first: u16) -> Result<(), String> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let start = |number| {
        SoftNode::builder()
            .nodes(NODES)
            .number(number)
            .start()
            .map_err(text)
    };
    let (server, client) = (start(first)?, start(first + 1)?);
    let served = Port::open(&server.node(), PortConfig::number(SERVED.0)).map_err(text)?;
    let memory = served.alloc(1 << 16).map_err(text)?;
    let access = || Access::everyone().notify(5..=5);
    let _export = served.export("memory", &memory, .., access()).map_err(text)?;
    let mut heap = vec![0u8; 3 * 4096];
    let start = std::ptr::NonNull::new(heap.as_mut_ptr()).unwrap();
    // SAFETY: the heap lives longer than the region, and is reached through it alone meanwhile.
    let adopted = unsafe { served.adopt(start, heap.len() as u64) }.map_err(text)?;
    let _lent = served.export("adopted", &adopted, .., access()).map_err(text)?;
    let to = client
        .connect(&format!("#{}", server.number()), PATIENCE)
        .map_err(text)?;
    let port = Port::open(&client.node(), PortConfig::default()).map_err(text)?;
    for name in ["memory", "adopted"] {
        let remote = port.import(to, SERVED, name, PATIENCE).map_err(text)?;
        let sent: Vec<u8> = (0..9000).map(|at| (at * 7 + 3) as u8).collect();
        remote.write(8, &sent[..]).notify(5).post().map_err(text)?;
        let arrived = served.notification(5).map_err(text)?;
        arrived.wait(netvm::Timeout::After(PATIENCE)).map_err(text)?;
        arrived.ack().map_err(text)?;
        let mut back = vec![0; 9000];
        remote.read(8, &mut back[..]).call().map_err(text)?;
        assert_eq!(sent, back);
        let word = remote.word64(0).map_err(text)?;
        assert_eq!(word.fetch_add(5).map_err(text)?, 0);
        assert_eq!(word.fetch_add(1).map_err(text)?, 5);
    }
    Ok(())
}

fn limit(what: libc::__rlimit_resource_t, most: u64) {
    let limits = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: lowers this process' own limit.
    let lowered = unsafe { libc::setrlimit(what, &raw const limits) };
    assert_eq!(lowered, 0);
}

/// These calls fail with EPERM from now on, in every thread.
fn forbid(calls: &[libc::c_long]) {
    let statement = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    // The number of the call is the first word of what the filter sees.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (at, call) in calls.iter().enumerate() {
        let to_the_end = (calls.len() - at) as u8;
        filter.push(statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            to_the_end,
            *call as u32,
        ));
    }
    let ends = [
        libc::SECCOMP_RET_ALLOW,
        libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    ];
    filter.extend(ends.map(|end| statement(libc::BPF_RET | libc::BPF_K, 0, end)));
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: concerns this process alone; the program lives as long as the call.
    let done = unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let flags = libc::SECCOMP_FILTER_FLAG_TSYNC;
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn with_forbidden(calls: &[libc::c_long]) -> String {
    let calls: Vec<String> = calls.iter().map(libc::c_long::to_string).collect();
    let mut player = Player::start("forbidden", &[("NETVM_CALLS", &calls.join(" "))]);
    let result = player.hear("result: ");
    player.end();
    result
}

#[test]
fn what_sandboxes_forbid() {
    // What reads, writes or looks into other processes, what serves page faults, what locks memory.
    let others = [
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_ptrace,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_process_madvise,
        libc::SYS_userfaultfd,
        libc::SYS_mlock,
        libc::SYS_mlock2,
        libc::SYS_mlockall,
        libc::SYS_io_uring_setup,
        libc::SYS_perf_event_open,
        libc::SYS_bpf,
        libc::SYS_shmget,
    ];
    assert_eq!(with_forbidden(&others), "it works");
    for (call, what) in [
        (libc::SYS_memfd_create, "a memfd"),
        (libc::SYS_eventfd2, "an eventfd"),
        (libc::SYS_socket, "a Unix socket"),
        (libc::SYS_recvmsg, "an introduction"),
    ] {
        let says = with_forbidden(&[call]);
        println!("{says}");
        assert!(says.contains(what) && says.contains("sandbox"), "{says}");
    }
}

/// A mount namespace with an empty `/proc`, for the process that `command` starts.
fn without_proc(command: &mut Command) {
    let (none, root, proc) = (c"none", c"/", c"/proc");
    let tmpfs: CString = c"tmpfs".into();
    // SAFETY: system calls only, in a process with a single thread.
    unsafe {
        command.pre_exec(move || {
            let done = |result| {
                if result == 0 {
                    Ok(())
                } else {
                    Err(std::io::Error::last_os_error())
                }
            };
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                done(libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS))?;
            }
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(
                none.as_ptr(),
                root.as_ptr(),
                std::ptr::null(),
                flags,
                std::ptr::null(),
            ))?;
            done(libc::mount(
                none.as_ptr(),
                proc.as_ptr(),
                tmpfs.as_ptr(),
                0,
                std::ptr::null(),
            ))
        });
    }
}

#[test]
fn without_proc_nodes_work_and_only_the_list_of_them_is_missing() {
    let mut command = scene_command("no-proc", &[]);
    without_proc(&mut command);
    let mut player = match Player::try_of(command) {
        Ok(player) => player,
        Err(error) => {
            println!("skipped: this process may not make a mount namespace: {error}");
            return;
        }
    };
    assert_eq!(player.hear("result: "), "it works");
    let listed = player.hear("listed: ");
    assert!(listed.contains("NotFound"), "{listed}");
    player.end();
}

/// From none more than there are to as many as it takes.
fn few_files() {
    let used = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    limit_files(used - 1);
    for more in 0..64 {
        limit_files(used - 1 + more);
        match exchange(FIRST + 4) {
            Ok(()) => {
                println!("\nresult: it works with {more}");
                return;
            }
            Err(error) => {
                println!("{more}: {error}");
                assert!(error.contains("ulimit -n"), "{error}");
            }
        }
    }
    println!("\nresult: it never works");
}

fn limit_files(most: u64) {
    let limits = libc::rlimit {
        rlim_cur: most,
        rlim_max: 1000,
    };
    // SAFETY: changes this process' own limit.
    let changed = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits) };
    assert_eq!(changed, 0);
}

#[test]
fn with_few_descriptors_a_node_says_which_limit_to_raise() {
    let mut player = Player::start("few-files", &[]);
    let result = player.hear("result: it works with ");
    assert!(result.parse::<u64>().unwrap() > 3, "{result}");
    player.end();
}

#[test]
fn with_little_address_space_a_node_says_which_limit_to_raise() {
    let mut worked = Vec::new();
    // So many that some refuse each of the things that a node asks for. The C library reserves 64 MiB of address space for each thread as
    // long as it gets them; then what is left is a matter of chance, and any allocation of a program may end it.
    for room in (0..300).step_by(3).chain([1024]) {
        let mut player = Player::start(
            "little-space",
            &[("NETVM_ROOM", &room.to_string()), ("MALLOC_ARENA_MAX", "1")],
        );
        let result = player.hear("result: ");
        player.end();
        println!("{room} MiB: {result}");
        let works = result == "it works";
        assert!(works || result.contains("ulimit -v"), "{room} MiB: {result}");
        worked.push(works);
    }
    assert!(!worked[0] && worked[worked.len() - 1], "{worked:?}");
}

/// A number of names that no table can have is refused, with those that one can.
#[test]
fn a_node_without_room_for_a_name_says_what_it_takes() {
    let refused = SoftNode::builder().names(0).start().unwrap_err().to_string();
    assert!(refused.contains("'exports' must be from 1 to 65535"), "{refused}");
}
