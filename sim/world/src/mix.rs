use crate::config::Config;
use crate::dice::Dice;
use crate::workload::Role;
pub(crate) fn roles(_dice: &mut Dice, _config: &Config) -> Vec<Role> {
    Vec::new()
}
