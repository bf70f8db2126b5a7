//! The names and descriptions that both ends of a link refer to by number.

use super::Links;
use super::descriptions::Descriptions;
use super::names::{NamesIn, NamesOut};
use crate::fabric::LinkId;
use crate::protocol::action::Actions;
use crate::protocol::rules::Broken;
use crate::tensor::{Key, Name, TensorMeta};
use crate::wire::message::{Body, Message, NameRef, Role};

/// The numbered names and descriptions of one link.
pub(super) struct Numbers {
    /// The names that this side has numbered.
    names_out: NamesOut,
    /// The names that the peer has numbered.
    names_in: NamesIn,
    descriptions: Descriptions,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers { names_out: NamesOut::default(), names_in: NamesIn::default(), descriptions: Descriptions::new() }
    }
}

impl Links {
    /// Returns the numbers of the names of one message. Queues a NAME for each name that the peer does not know yet.
    pub(crate) fn number<const N: usize>(
        &mut self,
        link: LinkId,
        names: [&Name; N],
        actions: &mut Actions,
    ) -> [NameRef; N] {
        names.map(|name| {
            let Some(l) = self.links.get_mut(&link) else { return NameRef { id: 0, generation: 0 } };
            let (number, new) = l.numbers.names_out.number(name, &names, self.names_limit);
            let keeps_quiet = number.generation > 0 && self.rules.breaks(Broken::ReusesNames);
            if new && !keeps_quiet {
                let body = Body::Name { name: number, text: name.clone() };
                self.post(link, super::Out::Message(Message::new(Role::Pull, 0, body)), actions);
            }
            number
        })
    }

    /// Handles a name to which the peer has given a number.
    ///
    /// # Errors
    /// Returns what the peer did wrong.
    pub(crate) fn name_told(&mut self, link: LinkId, number: NameRef, name: Name) -> Result<(), String> {
        let Some(l) = self.links.get_mut(&link) else { return Ok(()) };
        l.numbers.names_in.enter(number, name, self.names_limit)
    }

    /// Returns the name to which the peer has given this number.
    ///
    /// # Errors
    /// Returns what the peer did wrong.
    pub(crate) fn look_up(&self, link: LinkId, number: NameRef) -> Result<&Name, String> {
        let Some(l) = self.links.get(&link) else { return Err("its link is gone".to_owned()) };
        let untold = || format!("it uses name {}.{}, which it never told", number.id, number.generation);
        l.numbers.names_in.look_up(number).ok_or_else(untold)
    }

    /// Returns the number by which the peer knows this description of a key, if the peer knows it.
    pub(crate) fn told(&self, link: LinkId, key: &Key, meta: &TensorMeta) -> Option<u32> {
        self.links.get(&link)?.numbers.descriptions.told(key, meta)
    }

    /// Gives a description a new number. The caller sends both to the peer.
    pub(crate) fn tell(&mut self, link: LinkId, key: &Key, meta: &TensorMeta) -> Option<u32> {
        Some(self.links.get_mut(&link)?.numbers.descriptions.tell(key, meta, self.names_limit))
    }

    /// Returns the peer's number for its description of a key, and the description.
    pub(crate) fn heard(&self, link: LinkId, key: &Key) -> Option<&(u32, TensorMeta)> {
        self.links.get(&link)?.numbers.descriptions.heard(key)
    }

    /// Stores the peer's description of a key.
    pub(crate) fn hear(&mut self, link: LinkId, key: &Key, id: u32, meta: TensorMeta) {
        if let Some(l) = self.links.get_mut(&link) {
            l.numbers.descriptions.hear(key, id, meta, self.names_limit);
        }
    }

    /// Removes the peer's description of a key.
    pub(crate) fn forget_heard(&mut self, link: LinkId, key: &Key) {
        if let Some(l) = self.links.get_mut(&link) {
            l.numbers.descriptions.forget(key);
        }
    }
}
