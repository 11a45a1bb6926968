//! Every counter is driven above zero: a counter that no test moves fails here.

use crate::{
    atomics, card, imports, leases, life, names, paging, refused, releases, shadow, sources, stuck, unmap,
};
use netvm_host::counters::Counters;
use netvm_kit::host::SUMS;

#[test]
fn every_counter_is_driven_above_zero() {
    SUMS.with_borrow_mut(Vec::clear);
    paging::a_bounced_write_is_copied_once_mapped_and_ended();
    refused::what_is_wrong_with_a_bounced_write_ends_its_slot();
    paging::a_page_that_cannot_be_had_ends_the_slot_with_its_status();
    paging::after_three_lost_races_the_message_is_copied_but_not_mapped();
    paging::an_evicted_page_is_paged_in_again_before_the_copy();
    sources::a_source_miss_is_mapped_and_tried_again();
    sources::the_third_try_of_a_source_is_copied();
    atomics::a_missed_operand_is_mapped_for_writing_and_tried_again();
    atomics::the_third_try_of_an_atomic_is_done_by_the_host();
    sources::a_source_that_cannot_be_had_fails();
    paging::a_read_reply_lands_in_the_port_s_own_page_without_a_capability();
    shadow::mapping_again_changes_frame_or_permission_by_a_full_unmap();
    shadow::full_rows_displace_a_page_and_tell_its_marks();
    shadow::a_page_that_the_nic_holds_makes_no_room();
    unmap::a_used_page_is_waited_for_or_restored();
    unmap::waits_are_counted_by_their_length_and_what_the_nic_had_of_them();
    unmap::write_protection_is_a_full_unmap_and_leaves_readers();
    unmap::a_lock_that_is_not_released_in_time_means_a_dead_card();
    names::a_request_made_twice_is_granted_once();
    names::grants_that_an_importer_has_lost_come_back_when_they_are_short();
    names::unexport_clears_then_waits_for_the_barrier_then_tells_the_importer();
    names::a_released_capability_is_free_again_but_only_for_its_holder();
    names::an_importer_gets_what_root_list_and_request_all_give();
    imports::an_import_asks_and_is_granted();
    imports::a_lost_answer_is_asked_for_again_until_the_deadline();
    imports::a_revocation_and_a_lost_node_void_an_import();
    imports::without_a_link_it_fails_or_waits_for_it();
    imports::a_request_that_cannot_be_answered_now_is_dropped_without_a_grant();
    releases::a_release_that_cannot_be_sent_now_is_sent_later();
    stuck::a_page_that_does_not_come_in_time_fails_its_message();
    stuck::a_page_out_of_the_cards_reach_is_copied_and_not_mapped();
    life::a_dead_process_leaves_nothing();
    life::a_new_incarnation_comes_after_the_old_one_is_let_go();
    life::a_sleeping_nic_is_woken_once_for_each_event();
    leases::leases_leave_room_and_come_back();
    leases::later_the_card_is_asked_before_the_copy();
    card::after_a_reset_the_card_is_attached_again();
    let mut sums = vec![0; Counters::NAMES.len()];
    SUMS.with_borrow(|runs| {
        for run in runs {
            for (sum, value) in sums.iter_mut().zip(run.values()) {
                *sum += value;
            }
        }
    });
    let still: Vec<_> = Counters::NAMES
        .iter()
        .zip(&sums)
        .filter(|(_, sum)| **sum == 0)
        .collect();
    assert!(still.is_empty(), "never moved: {still:?}");
}

#[test]
fn names_and_values_go_together() {
    let counters = Counters {
        peers_released: 7,
        ..Counters::default()
    };
    assert_eq!(counters.iter().last(), Some(("peers_released", 7)));
    assert_eq!(counters.values().count(), Counters::NAMES.len());
}
